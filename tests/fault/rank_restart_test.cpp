// Tests of rank restarts: after the loss of a rank of a supervised run, only its process is new. The run
// continues bit for bit, the processes that stay lose no memory, threads or descriptors, and another fault
// starts all ranks again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>
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

const test::ProgramOptions kInProject = {.folder = PRIMUS_SOURCE_DIR};  // for the files of the examples

// Trains a model that answers prompts by rewards, on two ranks. A program computes each reward. It waits
// before each answer, and starts a process that sleeps.
struct Reinforcement {
  static constexpr int kSteps = 30, kSave = 5;
  // `stage`: "grpo" or another one that generates answers.
  explicit Reinforcement(std::string stage) : stage_(std::move(stage)) {
    write_file(lingers_, "#!/bin/sh\nsleep 1000\nexit\n");
    write_file(reward_, "#!/bin/sh\n'" + lingers_.string() +
                            "' >/dev/null 2>&1 </dev/null &\n"
                            "while read -r line; do sleep 0.01; "
                            "printf '0.%s\\n' \"$((${#line} % 10))\"; done\n");
    for (const Path& file : {reward_, lingers_})
      std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    std::vector<std::string> words = common("pretrain", "llama_tiny-sums");
    words.insert(words.end(), {"exp_name=base", "train_iters=2", "lr_warmup_iters=0"});
    test::expect_done(run_program(words, kInProject));
  }
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> words = common(stage_, "llama_tiny-" + stage_);
    words.insert(words.end(),
                 {"exp_name=" + name, "load=" + run_folder(folder_.path(), "base").string(),
                  "reward=[program:" + reward_.string() + "]", "global_batch_size=16", "micro_batch_size=4",
                  "num_generations=4", "train_iters=" + std::to_string(kSteps), "lr_warmup_iters=0",
                  "save_interval=" + std::to_string(kSave), "keep_latest=2", "--nproc=2"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Path run(const std::string& name) const { return run_folder(folder_.path(), name); }

  // Returns the processes that the programs of rewards have started.
  std::set<std::string> lingering() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find(lingers_.string()) != std::string::npos) found.insert(entry.path().filename());
    }
    return found;
  }

 private:
  std::vector<std::string> common(const std::string& stage, const std::string& config) const {
    return {"train",
            stage,
            "--config=examples/native/configs/CPU/" + config + ".yaml",
            "workspace=" + folder_.path().string(),
            "work_group=w",
            "user_name=u",
            "device=cpu",
            "num_layers=1",
            "hidden_size=32",
            "ffn_hidden_size=64",
            "num_attention_heads=2",
            "num_threads=1",
            "--quiet"};
  }

  TemporaryFolder folder_;
  std::string stage_;
  Path reward_ = folder_.path() / "reward.sh", lingers_ = folder_.path() / "lingers.sh";
};

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

// Kills each of the two ranks while they generate, wait for rewards or learn. `more`: settings of the stage.
void expect_equal_answers(const std::string& stage, const std::vector<std::string>& more) {
  const Reinforcement training(stage);
  test::expect_done(run_program(training.command("whole", more), kInProject));
  const Path run = training.run("faulty"), whole = training.run("whole");
  std::vector<std::string> words = training.command("faulty", more);
  words.emplace_back("--supervise");
  Program program(words, kInProject);
  for (const int rank : {1, 0}) {
    const std::size_t done = losses(run).size();
    ASSERT_TRUE(wait_until([&] { return losses(run).size() > done + Reinforcement::kSave; }));
    const pid_t stays = rank_process(program, 1 - rank), lost = rank_process(program, rank);
    const std::size_t begun = begins(run);
    const std::set<std::string> before = training.lingering();
    EXPECT_FALSE(before.empty());
    kill(lost, SIGKILL);
    ASSERT_TRUE(wait_until([&] { return !program.running() || begins(run) > begun; }));
    EXPECT_TRUE(wait_until([&] {
      const std::set<std::string> now = training.lingering();
      return std::ranges::none_of(before, [&](const std::string& one) { return now.contains(one); });
    })) << "processes of the lost start remain";
    EXPECT_EQ(rank_process(program, 1 - rank), stays);
    EXPECT_NE(rank_process(program, rank), lost);
  }
  const ProgramResult result = program.wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses(run), losses(whole));
  EXPECT_FALSE(test::final_weights(run, Reinforcement::kSteps).empty());
  EXPECT_EQ(test::final_weights(run, Reinforcement::kSteps),
            test::final_weights(whole, Reinforcement::kSteps));
  EXPECT_EQ(count(supervisor_events(run), "\"rung\":\"rank restart\""), 2U) << supervisor_events(run);
  EXPECT_TRUE(training.lingering().empty());
}

TEST(RankRestart, ARunThatGeneratesAnswersContinues) { expect_equal_answers("grpo", {}); }

// Threads wait for rewards of later steps when the ranks leave the lost start.
TEST(RankRestart, ARunWithRewardsInTheBackgroundContinues) {
  expect_equal_answers("grpo", {"max_staleness=2"});
}

TEST(RankRestart, ARunWithAModelOfValuesContinues) { expect_equal_answers("ppo", {}); }

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
