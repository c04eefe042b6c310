// Tests of the folder of snapshots in memory, and of copies between hosts.
#include "lm/checkpoint/snapshot_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "comm/rendezvous/wire.h"
#include "lm/checkpoint/snapshot_folder.h"

namespace primus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = SnapshotFolder::Kind;

const std::string kFirst = "0123456789abcdef", kSecond = "00000000000000ff";

void write_snapshot(const SnapshotFolder& folder, Kind kind, int rank, const SnapshotId& id,
                    const std::string& content) {
  const Path place = folder.snapshot(kind, rank, id);
  make_folders(place);
  write_file(place / "manifest.json", "m");
  write_file(place / "optimizer.safetensors", content);
}

// Three hosts with one rank each, as folders of this one. Host 0 has no server.
class SnapshotHosts : public testing::Test {
 protected:
  SnapshotHosts() {
    for (int node = 0; node < 3; ++node) {
      const Path home = temporary_.path() / std::to_string(node);
      make_folders(home);
      folders_.emplace_back(home);
      links_.push_back({.peers = temporary_.path() / "peers",
                        .key = snapshot_key("secret", "2 machines"),
                        .node = node,
                        .nodes = 3,
                        .ranks = 1,
                        .world = 3});
    }
    for (int node = 1; node < 3; ++node) serve(node);
  }

  void serve(int node) {
    comm::Socket listener = comm::listen_on("127.0.0.1", 0);
    const auto at = static_cast<std::size_t>(node);
    links_[at].publish("127.0.0.1", ports_[at] = comm::port_of(listener));
    servers_.push_back(std::make_unique<SnapshotServer>(std::move(listener), folders_[at], links_[at]));
  }

  test::TemporaryFolder temporary_;
  std::vector<SnapshotFolder> folders_;
  std::vector<SnapshotLink> links_;
  std::array<std::uint16_t, 3> ports_{};
  std::vector<std::unique_ptr<SnapshotServer>> servers_;
  SendRate unlimited_{0};
};

TEST(SnapshotFolders, GenerationsAreReadStrictly) {
  const SnapshotId one{.history = kFirst, .iteration = 120};
  EXPECT_EQ(snapshot_id_of(to_text(one)), one);
  for (const char* text :
       {"", "/", "0123456789abcdef", "0123456789abcdef/", "0123456789abcdef/-1", "0123456789abcdef/0",
        "0123456789abcdef/1x", "0123456789abcdeF/1", "../../../../../x/1", "0123456789abcdef0/1",
        "0123456789abcdef/99999999999999999999"})
    EXPECT_FALSE(snapshot_id_of(text)) << text;
  const std::vector<SnapshotId> two = {one, {.history = kSecond, .iteration = 7}};
  EXPECT_EQ(snapshot_ids_of(to_text(two)), two);
  EXPECT_THAT(snapshot_ids_of("x  y/1 " + to_text(one)), ElementsAre(one));
  EXPECT_NE(new_history(), new_history());
  EXPECT_TRUE(snapshot_id_of(new_history() + "/1"));
}

TEST(SnapshotFolders, OnlyCompleteSnapshotsAreListedAndOthersRemoved) {
  const test::TemporaryFolder temporary;
  const SnapshotFolder folder(temporary.path());
  const SnapshotId a{.history = kFirst, .iteration = 10}, b{.history = kFirst, .iteration = 20},
      c{.history = kSecond, .iteration = 20};
  EXPECT_THAT(folder.list(Kind::kOwn, 3), IsEmpty());
  for (const SnapshotId& one : {a, b, c}) write_snapshot(folder, Kind::kOwn, 3, one, "x");
  write_snapshot(folder, Kind::kCopies, 3, c, "x");
  const Path half = folder.history(Kind::kOwn, 3, kFirst) / ".tmp-iter_0000030";
  make_folders(half);
  EXPECT_THAT(folder.list(Kind::kOwn, 3), UnorderedElementsAre(a, b, c));
  EXPECT_THAT(folder.list(Kind::kOwn, 2), IsEmpty());
  folder.keep_only(Kind::kOwn, 3, {b});
  EXPECT_THAT(folder.list(Kind::kOwn, 3), ElementsAre(b));
  EXPECT_FALSE(std::filesystem::exists(half));
  EXPECT_THAT(folder.list(Kind::kCopies, 3), ElementsAre(c));
  folder.keep_only(Kind::kOwn, 3, {});
  EXPECT_THAT(folder.list(Kind::kOwn, 3), IsEmpty());
}

TEST(SnapshotFolders, DistrustCoversAllHistoriesAndStaysReadable) {
  const test::TemporaryFolder temporary;
  const SnapshotFolder folder(temporary.path());
  EXPECT_THAT(folder.histories(3), IsEmpty());
  folder.record_history(3, kFirst);
  folder.record_history(3, kSecond);
  EXPECT_THAT(folder.histories(3), ElementsAre(kSecond, kFirst));
  folder.distrust(3, {{.history = kFirst, .iteration = 20}});
  folder.distrust(3, {{.history = kSecond, .iteration = 15}, {.history = kFirst, .iteration = 30}});
  EXPECT_THAT(folder.distrusted(3), UnorderedElementsAre(SnapshotId{.history = kFirst, .iteration = 20},
                                                         SnapshotId{.history = kSecond, .iteration = 15}));
  // A job with many restarts.
  constexpr std::size_t kKept = 64;
  std::vector<SnapshotId> many;
  for (int start = 0; start < 100; ++start) {
    many.insert(many.begin(), {.history = new_history(), .iteration = 1'000'000'000'000'000'000});
    folder.record_history(3, many.front().history);
  }
  folder.distrust(3, many);
  folder.distrust(3, {{.history = kFirst, .iteration = 5}});
  EXPECT_EQ(folder.histories(3).size(), kKept);
  ASSERT_EQ(folder.distrusted(3).size(), kKept);
  EXPECT_EQ(folder.distrusted(3).front().history, kFirst);
  EXPECT_EQ(folder.distrusted(3)[1], many.front());
}

TEST(SnapshotFolders, TheLinkIsReadStrictly) {
  const SnapshotLink link{.peers = "/a b/c", .key = "k", .node = 1, .nodes = 3, .ranks = 8, .world = 16};
  const auto read = SnapshotLink::parse(link.text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text(), link.text());
  for (const char* text :
       {"", "1 3 8 16 k", "3 3 8 16 k /a", "-1 3 8 16 k /a", "1 3 0 16 k /a", "1 3 8 16  /a"})
    EXPECT_FALSE(SnapshotLink::parse(text)) << text;
}

TEST_F(SnapshotHosts, ACopyIsFetchedByTheHostThatTakesThePlace) {
  const SnapshotId one{.history = kFirst, .iteration = 10}, two{.history = kFirst, .iteration = 20},
      three{.history = kSecond, .iteration = 15};
  const std::string large(9 << 20, 'z');  // several pieces
  for (const SnapshotId& id : {one, two, three}) {
    write_snapshot(folders_[0], Kind::kOwn, 0, id, large);
    auto partner = SnapshotPeer::connect(links_[0], 1);
    ASSERT_TRUE(partner);
    EXPECT_EQ(partner->put(0, id, folders_[0], unlimited_), "");
    EXPECT_THAT(partner->list(0), testing::Contains(id));
  }
  // At most two copies of a rank exist: the newest ones, by the time of their arrival.
  EXPECT_THAT(folders_[1].list(Kind::kCopies, 0), UnorderedElementsAre(two, three));
  // Host 2 takes the place of host 0.
  std::string problem;
  const auto note = [&](const std::string& text) { problem = text; };
  EXPECT_TRUE(fetch_snapshot(links_[2], folders_[2], 0, two, note)) << problem;
  EXPECT_EQ(read_file(folders_[2].snapshot(Kind::kOwn, 0, two) / "optimizer.safetensors"), large);
  EXPECT_FALSE(fetch_snapshot(links_[2], folders_[2], 0, one, note));
  EXPECT_THAT(problem, HasSubstr("no other host has it (1 of 2 answered)"));
  // Without the partner there is no copy.
  servers_.clear();
  EXPECT_FALSE(fetch_snapshot(links_[2], folders_[2], 0, three, note));
  EXPECT_THAT(problem, HasSubstr("(0 of 2 answered)"));
}

TEST_F(SnapshotHosts, StrangersAndHostilePeersGetNothing) {
  const SnapshotId one{.history = kFirst, .iteration = 10};
  write_snapshot(folders_[0], Kind::kOwn, 0, one, "x");
  SnapshotLink other = links_[0];
  other.key = snapshot_key("another secret", "2 machines");
  EXPECT_FALSE(SnapshotPeer::connect(other, 1));
  other.key = snapshot_key("secret", "another job");
  EXPECT_FALSE(SnapshotPeer::connect(other, 1));
  EXPECT_FALSE(SnapshotPeer::connect(links_[0], 0));  // no server
  // A peer that knows the key and asks for ranks that do not exist gets no answer.
  auto peer = SnapshotPeer::connect(links_[0], 1);
  ASSERT_TRUE(peer);
  EXPECT_THROW(peer->list(3), Error);
  peer = SnapshotPeer::connect(links_[0], 1);
  ASSERT_TRUE(peer);
  EXPECT_THROW(peer->get(0, one, folders_[2]), Error);
  EXPECT_THAT(folders_[1].list(Kind::kCopies, 0), IsEmpty());
  // A program that is no peer sends what is no proof.
  const comm::Socket socket = comm::connect_to("127.0.0.1", ports_[1], comm::in(std::chrono::seconds(2)));
  comm::send_all(socket, std::string(200, 'A'), comm::in(std::chrono::seconds(2)));
  std::string answer(100, '\0');
  EXPECT_EQ(comm::receive_all(socket, answer, comm::in(std::chrono::seconds(2))), comm::IoResult::kClosed);
}

TEST_F(SnapshotHosts, AnInterruptedCopyDoesNotAppear) {
  const SnapshotId one{.history = kFirst, .iteration = 10};
  write_snapshot(folders_[0], Kind::kOwn, 0, one, std::string(64 << 20, 'x'));
  // Ends the server while it receives.
  SendRate slow(double{64 << 20});
  std::string outcome = "sent";
  std::thread sender([&] {
    try {
      auto partner = SnapshotPeer::connect(links_[0], 1);
      if (partner) outcome = partner->put(0, one, folders_[0], slow);
    } catch (const Error& error) {
      outcome = error.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  servers_.clear();
  sender.join();
  EXPECT_THAT(outcome, HasSubstr("connection to another host's snapshots"));
  EXPECT_THAT(folders_[1].list(Kind::kCopies, 0), IsEmpty());
}

TEST(SnapshotRates, TheRateIsKept) {
  SendRate rate(1e6);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) rate.wait(50'000);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(150));
}

}  // namespace
}  // namespace primus
