// Processes that train together: they equal one, any number of them goes on from what others saved, and the
// end of one is the end of all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::losses;
using test::Program;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr const char* kLevels[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, int ranks,
                               const std::string& level, std::vector<std::string> more) {
  for (const std::string& word :
       {"exp_name=" + name, std::string("global_batch_size=24"), "--nproc=" + std::to_string(ranks),
        "data_parallel_sharding_strategy=" + level, std::string("reduce_gradients_each_microbatch=false")})
    more.push_back(word);
  return test::train(folder.path(), more);
}

void expect_done(const ProgramResult& result) { ASSERT_EQ(result.exit_code, 0) << result.err; }

// Processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// The rank is in its environment.
pid_t process_of_rank(pid_t launcher, int rank) {
  for (const pid_t child : children_of(launcher)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') != std::string::npos) return child;
  }
  return 0;
}

template <class Condition>
bool wait_until(const Condition& condition, std::chrono::seconds limit = 60s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::size_t shared_memory_segments() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    count += entry.path().filename().string().starts_with("primus") ? 1 : 0;
  return count;
}

TEST(Ranks, TrainAsOneAndSaveTheSameFilesOnEveryLevel) {
  const TemporaryFolder folder;
  const std::vector<std::string> more = {"train_iters=6", "save_interval=3", "eval_iters=1",
                                         "eval_interval=4"};
  expect_done(run_program(train(folder, "one", 1, "no_shard", more)));
  const auto one = losses(test::run_folder(folder.path(), "one"));
  ASSERT_EQ(one.size(), 6U);
  for (const int ranks : {2, 3}) {
    std::string weights;
    for (const std::string level : kLevels) {
      const std::string name = level + std::to_string(ranks);
      expect_done(run_program(train(folder, name, ranks, level, more)));
      const Path run = test::run_folder(folder.path(), name);
      const auto steps = losses(run);
      ASSERT_EQ(steps.size(), one.size()) << name;
      for (const auto& [iteration, step] : steps) {
        EXPECT_NEAR(step.loss, one.at(iteration).loss, 1e-5 * one.at(iteration).loss) << name;
        EXPECT_NEAR(step.gradient_norm, one.at(iteration).gradient_norm,
                    1e-4 * one.at(iteration).gradient_norm)
            << name;
      }
      if (weights.empty()) weights = test::final_weights(run, 6);
      EXPECT_EQ(test::final_weights(run, 6), weights) << name;
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_TRUE(Env::posix().status(run / "logs" / "pre_trainer" / ("rank-" + std::to_string(rank)) /
                                        "output.log"));
    }
  }
}

TEST(Ranks, AnyNumberGoesOnFromWhatAnyOtherSaved) {
  const TemporaryFolder folder;
  expect_done(run_program(train(folder, "whole", 1, "no_shard", {"train_iters=8", "save_interval=4"})));
  const auto whole = losses(test::run_folder(folder.path(), "whole"));
  int number = 0;
  for (const int before : {1, 2, 3, 4}) {
    for (const int after : {1, 2, 3, 4}) {
      if (before == after) continue;
      const std::string name = "run" + std::to_string(before) + std::to_string(after);
      expect_done(run_program(train(folder, name, before, kLevels[number % 4],
                                    {"train_iters=8", "save_interval=4", "exit_interval=4"})));
      expect_done(run_program(
          train(folder, name, after, kLevels[(number + 1) % 4], {"train_iters=8", "save_interval=4"})));
      ++number;
      const auto steps = losses(test::run_folder(folder.path(), name));
      ASSERT_EQ(steps.size(), 8U) << name;
      for (const auto& [iteration, step] : steps)
        EXPECT_NEAR(step.loss, whole.at(iteration).loss, 1e-5 * whole.at(iteration).loss) << name;
    }
  }
}

TEST(Ranks, OneThatIsKilledEndsAllAndTheRestartLosesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::string> more = {"train_iters=60", "save_interval=5"};
  expect_done(run_program(train(folder, "whole", 3, "optim_grads_params", more)));
  const std::string expected = test::final_weights(test::run_folder(folder.path(), "whole"), 60);
  const std::size_t segments = shared_memory_segments();
  std::mt19937 random(7);
  const Path run = test::run_folder(folder.path(), "killed");
  const std::vector<std::string> command = train(folder, "killed", 3, "optim_grads_params", more);
  int killed = 0;
  for (int round = 0; round < 6; ++round) {
    Program program(command);
    const std::size_t before = losses(run).size();
    wait_until([&] { return !program.running() || losses(run).size() > before + 1; });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50000));
    const pid_t victim = process_of_rank(program.pid(), static_cast<int>(random() % 3));
    if (victim == 0) break;  // it was done before
    const std::vector<pid_t> all = children_of(program.pid());
    kill(victim, SIGKILL);
    const auto began = std::chrono::steady_clock::now();
    const ProgramResult result = program.wait();
    if (result.exit_code == 0) break;
    ++killed;
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
    EXPECT_THAT(result.err, HasSubstr("was killed by signal 9"));
    for (const pid_t process : all) EXPECT_NE(kill(process, 0), 0) << "rank still runs";
  }
  EXPECT_GE(killed, 2);
  EXPECT_EQ(shared_memory_segments(), segments);
  expect_done(run_program(command));
  EXPECT_EQ(test::final_weights(run, 60), expected);
}

TEST(Ranks, AreAskedToStopTogether) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path(), "run");
  Program program(train(folder, "run", 2, "optim", {"train_iters=100000", "save_interval=100000"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 3; }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("the same command continues"));
  const auto done = losses(run).size();
  expect_done(run_program(train(folder, "run", 2, "optim", {"train_iters=100000", "exit_interval=1"})));
  EXPECT_EQ(losses(run).size(), done + 1);
}

TEST(Ranks, OneOfThemWritesTheExportedExperiment) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "exported.yaml";
  const std::vector<std::string> more = {"train_iters=2", "--export-config", file.string()};
  expect_done(run_program(train(folder, "run", 2, "optim", more)));
  EXPECT_THAT(read_file(file), HasSubstr("data_parallel_sharding_strategy: optim"));
}

TEST(Ranks, WhatCannotBeSharedOutIsRefused) {
  const TemporaryFolder folder;
  ProgramResult result = run_program(train(folder, "run", 5, "optim", {"train_iters=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("global_batch_size (24) is not a multiple of micro_batch_size (2) times 5"),
                    HasSubstr("set it to a multiple of 10")));
  result = run_program(train(folder, "run", 3, "optim", {"num_distributed_optimizer_instances=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("set it to a divisor of 3"));
  result = run_program(train(folder, "run", 0, "optim", {}));
  EXPECT_EQ(result.exit_code, 2);
  result = run_program(train(folder, "run", 2, "optim", {"--dry-run"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("leave --nproc out"));
}

TEST(Ranks, ThatDifferAreRefused) {
  const TemporaryFolder folder;
  // As torchrun starts them, with different learning rates.
  const auto rank = [&](int number) {
    return Program(train(folder, "run", 1, "optim", {"train_iters=2", "lr=0." + std::to_string(number + 1)}),
                   {.environment = {{"RANK", std::to_string(number)},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", "29731"}}});
  };
  Program first = rank(0), second = rank(1);
  for (Program* program : {&first, &second}) {
    const ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("ranks 0 and 1 differ in the experiment"));
  }
}

}  // namespace
}  // namespace primus
