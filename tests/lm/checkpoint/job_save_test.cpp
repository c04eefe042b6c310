// Tests processes that save together over a job's rendezvous, and the files on disk after one of these
// processes is killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "comm/job.h"
#include "comm/rendezvous/store_server.h"
#include "lm/checkpoint/store_group.h"
#include "rank_threads.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

comm::JobEnvironment environment_of(int rank, std::uint16_t port) {
  comm::JobEnvironment environment;
  environment.rank = environment.local_rank = rank;
  environment.world = environment.local_world = kRanks;
  environment.master_port = port;
  environment.token = "token";
  return environment;
}

// One thread's connection to a store, as a rank of a group.
struct StoreRank {
  StoreRank(int rank, std::uint16_t port, std::chrono::milliseconds timeout)
      : client(environment_of(rank, port), comm::in(10s), abort,
               [](const std::string&) { return std::string(); }),
        group(client, "checkpoint", rank, kRanks, timeout) {}
  std::shared_ptr<comm::AbortState> abort = std::make_shared<comm::AbortState>();
  comm::StoreClient client;
  StoreGroup group;
};

// Runs `action` as every rank, and returns the errors. `timeout` applies to rank 0. The timeout of the other
// ranks is long, so that rank 0 gives up first.
template <class Action>
std::vector<std::string> with_store(std::chrono::milliseconds timeout, Action action) {
  comm::Socket listener = comm::listen_on("127.0.0.1", 0);
  const std::uint16_t port = comm::port_of(listener);
  comm::StoreServer server(std::move(listener), "token", kRanks);
  std::vector<std::string> errors(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        errors[static_cast<std::size_t>(rank)] = error_of([&] {
          StoreRank own(rank, port, rank == 0 ? timeout : 60s);
          action(own);
          own.client.leave();
        });
      });
    }
  }
  return errors;
}

// Exchanges texts of any length, including texts above the size limit of one value. No text stays in the
// store.
TEST(StoreGroup, GathersAndBroadcastsTexts) {
  const auto errors = with_store(10s, [](StoreRank& own) {
    for (const std::size_t size : {0UL, 1UL, 70'000UL, 1'048'544UL, 1'048'545UL, 3'000'000UL}) {
      const auto text_of = [&](int rank) { return std::string(size, static_cast<char>('a' + rank)); };
      const auto all = own.group.gather(text_of(own.group.rank()));
      if (own.group.rank() == 0) {
        ASSERT_EQ(all.size(), 3U);
        for (int rank = 0; rank < kRanks; ++rank)
          EXPECT_EQ(all[static_cast<std::size_t>(rank)], text_of(rank));
      } else {
        EXPECT_TRUE(all.empty());
      }
      EXPECT_EQ(own.group.broadcast(text_of(own.group.rank() + 5)), text_of(5));
    }
    // 40 rounds of 3 * 3 MB exceed the capacity of the store.
    for (int round = 0; round < 40; ++round) {
      own.group.gather(std::string(3'000'000, 'x'));
      own.group.broadcast(own.group.rank() == 0 ? std::string(3'000'000, 'y') : "");
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(StoreGroup, NamesTheWaitThatTimedOut) {
  const auto errors = with_store(100ms, [](StoreRank& own) {
    if (own.group.rank() != 2)
      in_step(
          own.group, [] { return ""; }, [](const auto&) { return ""; });
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 timed out while waiting for 'checkpoint/1/2/0'"));
  EXPECT_NE(errors[1], "");
  EXPECT_EQ(errors[2], "");
}

// Runs in a rank's process, and saves one checkpoint after another until it, or another rank, is killed.
[[noreturn]] void save_for_ever(int rank, comm::Socket listener, const Path& folder, std::int64_t first) {
  try {
    comm::JobEnvironment environment = environment_of(rank, comm::port_of(listener));
    if (rank == 0) {
      environment.listening_socket = listener.release();
    } else {
      listener.close();
    }
    const auto job = comm::Job::connect(environment, {});
    const auto group = std::make_shared<StoreGroup>(*job->store(), "checkpoint", rank, kRanks);
    AsyncWriter writer(folder, {.keep_last = 2, .group = group});
    for (std::int64_t iteration = first;; ++iteration) {
      const TestSnapshot snapshot(iteration);
      writer.save(cut(snapshot.snapshot, rank, kRanks));
      writer.wait();
    }
  } catch (const Error&) {
    ::_exit(2);  // another rank was lost
  } catch (...) {
  }
  ::_exit(1);
}

TEST(JobSave, SurvivesAnyRankKilledAtRandomInstants) {
  const TemporaryFolder folder;
  CheckpointRoot(folder.path()).save(TestSnapshot(1).snapshot);
  TestRandom random(5);
  std::int64_t reached = 1;
  std::uint64_t latest_instant = 100'000;  // microseconds
  for (int round = 0; round < 15 || (reached == 1 && round < 25); ++round) {
    SCOPED_TRACE(round);
    if (round >= 15) latest_instant *= 2;
    const int victim = round % kRanks;
    pid_t children[kRanks];
    {
      comm::Socket listener = comm::listen_on("127.0.0.1", 0);
      for (int rank = 0; rank < kRanks; ++rank) {
        children[rank] = ::fork();
        ASSERT_GE(children[rank], 0);
        if (children[rank] == 0) save_for_ever(rank, std::move(listener), folder.path(), reached + 1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(latest_instant)) + 50ms);
    ::kill(children[victim], SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ASSERT_EQ(::waitpid(children[rank], &status, 0), children[rank]);
      if (rank == victim) {
        ASSERT_TRUE(WIFSIGNALED(status)) << "the save failed before the signal";
      } else {
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << "rank " << rank << " did not notice";
      }
    }
    const ResumePoint point = find_resume_point(folder.path());
    EXPECT_TRUE(point.rejected.empty());
    ASSERT_TRUE(point.reader);
    EXPECT_GE(point.reader->iteration(), reached) << "a durable checkpoint was lost";
    reached = point.reader->iteration();
    TestSnapshot(reached).expect_equal(*point.reader);
  }
  EXPECT_GT(reached, 1) << "no job ever finished a save";
}

}  // namespace
}  // namespace primus
