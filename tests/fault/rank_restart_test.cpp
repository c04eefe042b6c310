// Tests of rank restarts: after the loss of a rank of a supervised run, only its process is new. The run
// continues bit for bit, the processes that stay lose no memory, threads or descriptors, and another fault
// starts all ranks again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "fault/ranks.h"
#include "lm/events/event_log.h"
#include "lm/events/supervision.h"

namespace primus {
namespace {

using test::job_of;
using test::losses;
using test::Program;
using test::ProgramResult;
using test::run_folder;
using test::run_program;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 400;

// Trains a model of a few thousand parameters on two ranks.
std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name,
                               std::vector<std::string> more) {
  more.insert(more.begin(), {"num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2",
                             "train_iters=" + std::to_string(kSteps), "keep_latest=2", "--quiet"});
  return test::train_ranks(folder, name, 2, "optim", std::move(more));
}

pid_t rank_process(const Program& program, int rank) {
  const pid_t job = job_of(program.pid());
  return job == 0 ? 0 : test::process_of_rank(job, rank);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string supervisor_events(const Path& run) { return read_file(supervision_file(run)); }

std::size_t begins(const Path& run) {
  const Path file = run / "events" / "rank-00000.jsonl";
  std::error_code none;
  return std::filesystem::exists(file, none) ? count(read_file(file), "\"event\":\"begin\"") : 0;
}

// Trains without and, in the folder "faulty", with faults. Expects equal losses and weights. `fault` runs
// when `steps` steps are done. Returns the events of the supervisor.
std::string expect_equal_bits(const std::vector<std::string>& more, std::size_t steps,
                              const std::function<void(Program&, const Path& run)>& fault) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "faulty"), whole = run_folder(folder.path(), "whole");
  std::vector<std::string> words = more;
  test::expect_done(run_program(train(folder, "whole", words)));
  words.emplace_back("--supervise");
  Program program(train(folder, "faulty", words));
  EXPECT_TRUE(wait_until([&] { return !program.running() || losses(run).size() >= steps; }));
  EXPECT_TRUE(program.running());
  fault(program, run);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses(run), losses(whole));
  EXPECT_FALSE(test::final_weights(run, kSteps).empty());
  EXPECT_EQ(test::final_weights(run, kSteps), test::final_weights(whole, kSteps));
  return supervisor_events(run);
}

TEST(RankRestart, OnlyTheLostProcessIsNew) {
  std::string runs, postmortem;
  const std::string events =
      expect_equal_bits({"save_interval=30"}, 61, [&](Program& program, const Path& run) {
        for (const int rank : {1, 0}) {
          const std::array<pid_t, 2> before{rank_process(program, 0), rank_process(program, 1)};
          const std::size_t begun = begins(run), done = losses(run).size();
          const pid_t job = job_of(program.pid());
          kill(before[static_cast<std::size_t>(rank)], rank == 1 ? SIGKILL : SIGSEGV);
          ASSERT_TRUE(wait_until([&] { return begins(run) > begun; }));
          EXPECT_EQ(job_of(program.pid()), job);
          EXPECT_EQ(rank_process(program, 1 - rank), before[static_cast<std::size_t>(1 - rank)]);
          EXPECT_NE(rank_process(program, rank), before[static_cast<std::size_t>(rank)]);
          for (const int any : {0, 1})
            EXPECT_THAT(read_file(event_file(run, any)),
                        HasSubstr("\"pid\":" + std::to_string(rank_process(program, any)) + ","));
          ASSERT_TRUE(wait_until([&] { return losses(run).size() >= done + 61; }));
        }
        runs = run_program({"runs", run.string(), "--json"}).out;
        postmortem = run_program({"postmortem", run.string()}).out;
      });
  EXPECT_EQ(count(events, "\"rung\":\"rank restart\""), 2U) << events;
  EXPECT_THAT(events, AllOf(HasSubstr("\"replaced\":[1]"), HasSubstr("\"replaced\":[0]"),
                            Not(HasSubstr("job restart"))));
  EXPECT_THAT(runs, AllOf(HasSubstr("\"restarts\": 2"), HasSubstr("\"rank_restarts\": 2")));
  EXPECT_THAT(postmortem, HasSubstr("by a rank restart"));
}

TEST(RankRestart, AnotherFaultBeforeTheFirstStepStartsAllRanksAgain) {
  const std::string events = expect_equal_bits({"save_interval=30"}, 61, [&](Program& program, const Path&) {
    pid_t victim = rank_process(program, 1), next = 0;
    kill(victim, SIGKILL);
    ASSERT_TRUE(wait_until([&] {
      next = rank_process(program, 1);
      return next != 0 && next != victim;
    }));
    kill(next, SIGKILL);
  });
  EXPECT_THAT(events, HasSubstr("\"rung\":\"job restart\"")) << events;
}

// A stopped process cannot leave the lost start.
TEST(RankRestart, ARankThatDoesNotLeaveInTimeIsReplaced) {
  const std::string events = expect_equal_bits({"save_interval=30"}, 61, [&](Program& program, const Path&) {
    kill(rank_process(program, 0), SIGSTOP);
    kill(rank_process(program, 1), SIGKILL);
  });
  EXPECT_THAT(events, HasSubstr("\"replaced\":[0,1]")) << events;
}

TEST(RankRestart, TheOptionRestartsAllRanks) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "all");
  Program program(train(folder, "all", {"save_interval=30", "--supervise", "--restart-all"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 61; }));
  const pid_t other = rank_process(program, 0), job = job_of(program.pid());
  kill(rank_process(program, 1), SIGKILL);
  ASSERT_TRUE(wait_until([&] { return begins(run) == 2; }));
  EXPECT_NE(job_of(program.pid()), job);
  EXPECT_NE(rank_process(program, 0), other);
  EXPECT_EQ(program.wait().exit_code, 0);
  EXPECT_THAT(supervisor_events(run),
              AllOf(HasSubstr("\"rung\":\"job restart\""), Not(HasSubstr("rank restart"))));
  EXPECT_THAT(run_program(train(folder, "plan", {"--supervise", "--dry-run"})).out,
              HasSubstr("lost rank         only its process is new"));
  EXPECT_THAT(run_program(train(folder, "plan", {"--supervise", "--dry-run", "--json", "--restart-all"})).out,
              HasSubstr("\"rank_restarts\": false"));
  const ProgramResult alone = run_program(train(folder, "all", {"--restart-all"}));
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--restart-all needs --supervise"));
}

// A process holds these.
struct Held {
  std::size_t threads = 0, descriptors = 0, kilobytes = 0;
};
Held held_by(pid_t pid) {
  Held held;
  const std::string folder = "/proc/" + std::to_string(pid);
  std::ifstream status(folder + "/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> held.threads;
    if (word == "RssAnon:") status >> held.kilobytes;
  }
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder + "/fd"))
    ++held.descriptors;
  return held;
}

TEST(RankRestart, AProcessThatStaysLosesNothing) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "often");
  Program program(train(
      folder, "often",
      {"save_interval=4", "async_save=false", "train_iters=1000000", "--supervise", "--max-restarts=100"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 9; }));
  const pid_t stays = rank_process(program, 0);
  Held early, late;
  constexpr int kRestarts = 20, kEarly = 4;
  for (int i = 1; i <= kRestarts; ++i) {
    const std::size_t begun = begins(run);
    kill(rank_process(program, 1), SIGKILL);
    ASSERT_TRUE(wait_until([&] { return begins(run) > begun; }));
    const std::size_t steps = losses(run).size();
    ASSERT_TRUE(wait_until([&] { return losses(run).size() >= steps + 9; }));
    ASSERT_EQ(rank_process(program, 0), stays);
    if (i == kEarly) early = held_by(stays);
  }
  late = held_by(stays);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
  EXPECT_EQ(late.threads, early.threads);
  // A file may be open at the moment of either look.
  EXPECT_LE(late.descriptors, early.descriptors + 3);
  EXPECT_LE(late.kilobytes, early.kilobytes + early.kilobytes / 10);
  EXPECT_EQ(read_supervision(run)->rank_restarts, kRestarts);
}

}  // namespace
}  // namespace primus
