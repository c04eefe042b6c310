// Tests of the folders of supervisors for snapshots. tests/fault/snapshots_test.cpp has whole runs.
#include "safe/supervise/recovery/snapshot_home.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/temporary_folder.h"

namespace primus::supervise {
namespace {

using Kind = SnapshotFolder::Kind;

class SnapshotHomes : public ::testing::Test {
 protected:
  SnapshotHomes() { std::filesystem::create_directory(options_.memory); }

  static std::optional<SupervisedNodes> node(int number) {
    SupervisedNodes nodes;
    nodes.node = number;
    nodes.address = "127.0.0.1";
    nodes.port = 1;
    nodes.token = "secret";
    return nodes;
  }

  test::TemporaryFolder folder_;
  SnapshotHome::Options options_{.run = folder_.path() / "run", .memory = folder_.path() / "memory"};
};

// A supervisor that lost its connections may still live when another one takes its place.
TEST_F(SnapshotHomes, ALiveSupervisorOfTheSameNodeKeepsItsFolder) {
  auto first = std::make_unique<SnapshotHome>(options_, std::nullopt);
  const Path kept = first->folder().root() / "own";
  std::filesystem::create_directory(kept);
  const SnapshotHome second(options_, std::nullopt);
  EXPECT_NE(first->folder().root(), second.folder().root());
  EXPECT_TRUE(std::filesystem::exists(kept));
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(kept));
  EXPECT_TRUE(std::filesystem::exists(second.folder().root()));
  EXPECT_EQ(std::filesystem::status(second.folder().root()).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(SnapshotHomes, WhatKilledSupervisorsLeftBehindIsRemoved) {
  const std::string user = "primus-" + std::to_string(::geteuid());
  const Path ended = options_.memory / (user + "-0123456789abcdef-0-aa"),
             part = options_.memory / (user + "-0123456789abcdef-1-bb"),
             live = options_.memory / (user + "-0123456789abcdef-2-cc"), other = options_.memory / "primus-x";
  for (const Path& one : {ended, part, live, other}) {
    make_folders(one / "own");
    if (one != part) write_file(one / "lock", "");
  }
  const comm::Socket lock(::open((live / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.fd(), LOCK_EX), 0);
  const SnapshotHome home(options_, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(ended));
  EXPECT_FALSE(std::filesystem::exists(part));
  EXPECT_TRUE(std::filesystem::exists(live));
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(SnapshotHomes, AKilledSupervisorLeavesNothing) {
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    const SnapshotHome home(options_, std::nullopt);
    make_folders(home.folder().root() / "own" / "rank-00000");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(supervisor, &status, 0), supervisor);
  ASSERT_TRUE(WIFSIGNALED(status));
  for (int i = 0; i < 1000 && !std::filesystem::is_empty(options_.memory); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(std::filesystem::is_empty(options_.memory));
}

// The rank takes no further snapshot before it reads the record.
TEST_F(SnapshotHomes, ARecordThatCannotBeWrittenIsWrittenLater) {
  {
    const SnapshotHome home(options_, node(1));
    const SnapshotFolder& folder = home.folder();
    write_file(folder.root() / "copied", "a file in the place of the folder");
    const SnapshotId id{.history = "0123456789abcdef", .iteration = 10};
    make_folders(folder.snapshot(Kind::kOwn, 1, id));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::filesystem::remove(folder.root() / "copied");
    std::optional<SnapshotFolder::Copied> copied;
    for (int looks = 0; looks < 500 && !copied; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      copied = folder.copied(1);
    }
    ASSERT_TRUE(copied);
    EXPECT_EQ(copied->id, id);
    EXPECT_FALSE(copied->exists);  // no other node exists
    EXPECT_TRUE(std::filesystem::exists(options_.run / ".snapshot-hosts" / "node-00001"));
  }
  EXPECT_FALSE(std::filesystem::exists(options_.run / ".snapshot-hosts" / "node-00001"));
}

TEST_F(SnapshotHomes, ACopyIsMadeWhenABusyNodeIsFree) {
  const SnapshotHome sender(options_, node(0)), receiver(options_, node(1));
  const SnapshotId large{.history = "0123456789abcdef", .iteration = 10},
      small{.history = "0123456789abcdef", .iteration = 20};
  // Another sender, which is slow.
  const auto link = SnapshotLink::read(sender.folder());
  ASSERT_TRUE(link);
  const SnapshotFolder other(folder_.path() / "other");
  make_folders(other.snapshot(Kind::kOwn, 1, large));
  write_file(other.snapshot(Kind::kOwn, 1, large) / "a", std::string(9 << 20, 'a'));
  std::thread slow([&] {
    SendRate rate(9 << 20);
    EXPECT_EQ(SnapshotPeer::connect(*link, 1).value().put(1, large, other, rate), "");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  SendRate unlimited(0);
  make_folders(other.snapshot(Kind::kOwn, 0, small));
  EXPECT_EQ(SnapshotPeer::connect(*link, 1).value().put(0, small, other, unlimited), SnapshotPeer::kBusy);
  make_folders(sender.folder().snapshot(Kind::kOwn, 0, small));
  std::optional<SnapshotFolder::Copied> copied;
  for (int looks = 0; looks < 1000 && !copied; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    copied = sender.folder().copied(0);
  }
  slow.join();
  ASSERT_TRUE(copied);
  EXPECT_TRUE(copied->exists);
}

}  // namespace
}  // namespace primus::supervise
