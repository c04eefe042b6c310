// A rank that is really slowed is named: its process is stopped and continued all the time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "fault/ranks.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

using test::Program;
using test::TemporaryFolder;
using test::wait_until;
using namespace std::chrono_literals;

TEST(SlowRankRun, AStoppedAndContinuedRankIsNamed) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path(), "slow");
  // The smaller model of rank_kills_test.cpp has steps that are too short to be judged.
  Program program(test::train_ranks(
      folder, "slow", 2, "optim",
      {"num_layers=2", "hidden_size=128", "ffn_hidden_size=256", "num_attention_heads=4", "seq_length=128",
       "global_batch_size=8", "train_iters=100000", "save_interval=100000"}));
  ASSERT_TRUE(wait_until([&] { return test::losses(run).size() >= 30; }));
  const pid_t slow = test::process_of_rank(program.pid(), 1);
  ASSERT_NE(slow, 0);
  const auto began = std::chrono::steady_clock::now();
  bool named = false;
  while (!named && program.running() && std::chrono::steady_clock::now() - began < 60s) {
    for (int i = 0; i < 20; ++i) {
      kill(slow, SIGSTOP);
      std::this_thread::sleep_for(10ms);
      kill(slow, SIGCONT);
      std::this_thread::sleep_for(10ms);
    }
    for (const RunWarning& warning : recorded_warnings(run / "warnings.jsonl"))
      named = named || (warning.detector == "slow_rank" && warning.text.starts_with("rank 1 is slow"));
  }
  EXPECT_TRUE(named);
  program.send(SIGTERM);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace primus
