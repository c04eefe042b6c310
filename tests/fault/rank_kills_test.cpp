// Tests that kill one process of a run with several ranks at random moments. All ranks then end, and the
// restart resumes from the last good checkpoint. After many kills, the run is bit for bit equal to an
// uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "fault/ranks.h"

namespace primus {
namespace {

using test::losses;
using test::Program;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

struct Case {
  int ranks, kills;
  const char* level;
};

// Trains a model of a few thousand parameters, so that most of the time is spent on starting and saving.
std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, const Case& of,
                               std::vector<std::string> more) {
  for (const std::string& word :
       {std::string("num_layers=2"), std::string("hidden_size=24"), std::string("ffn_hidden_size=48"),
        std::string("num_attention_heads=2"), std::string("seq_length=16"),
        "global_batch_size=" + std::to_string(2 * of.ranks), std::string("train_iters=100000")})
    more.push_back(word);
  return test::train_ranks(folder, name, of.ranks, of.level, std::move(more));
}

// Returns whether a checkpoint is being written in this run's folder.
bool is_saving(const Path& run) {
  std::error_code nothing_there;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", nothing_there))
    if (entry.path().filename().string().starts_with(".tmp-")) return true;
  return false;
}

class RankKills : public testing::TestWithParam<Case> {};

TEST_P(RankKills, EndAllRanksAndTheRestartLosesNothing) {
  const Case& of = GetParam();
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path(), "killed");
  const std::vector<std::string> command = train(folder, "killed", of, {"save_interval=6", "keep_latest=2"});
  const std::size_t segments = test::shared_memory_segments();
  std::mt19937 random(7);  // a fixed seed gives the same choices in every test run
  const auto up_to = [&](std::chrono::microseconds maximum) { return maximum * (random() % 1000) / 1000; };
  std::chrono::microseconds start = 400ms;  // time from the start of the last run to its first step
  int while_saving = 0;
  for (int killed = 0; killed < of.kills; ++killed) {
    SCOPED_TRACE("kill " + std::to_string(killed));
    const std::size_t before = losses(run).size();
    Program program(command);
    const auto is_on = [&](const auto& condition) {
      return wait_until([&] { return !program.running() || condition(); });
    };
    const int rank = static_cast<int>(random() % static_cast<unsigned>(of.ranks));
    pid_t victim = 0;
    ASSERT_TRUE(is_on([&] { return (victim = test::process_of_rank(program.pid(), rank)) != 0; }));
    const auto found = std::chrono::steady_clock::now();
    switch (killed % 3) {
      case 0:  // while it starts or loads
        std::this_thread::sleep_for(up_to(start));
        break;
      case 1:  // during a step
        ASSERT_TRUE(is_on([&] { return losses(run).size() > before; }));
        start =
            std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - found);
        std::this_thread::sleep_for(up_to(30ms));
        break;
      case 2:  // while it saves
        ASSERT_TRUE(is_on([&] { return losses(run).size() > before && is_saving(run); }));
        std::this_thread::sleep_for(up_to(10ms));
        while_saving += is_saving(run) ? 1 : 0;
        break;
    }
    const std::vector<pid_t> all = test::children_of(program.pid());
    ASSERT_TRUE(program.running());
    kill(victim, SIGKILL);
    const auto began = std::chrono::steady_clock::now();
    const ProgramResult result = program.wait();
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
    // The message may name another rank. On a very busy machine, peers may end with other errors before the
    // launcher detects the killed process. tests/launch tests the launcher's message.
    EXPECT_THAT(result.err, HasSubstr("error: rank "));
    for (const pid_t process : all) EXPECT_NE(kill(process, 0), 0) << "a rank still runs";
  }
  EXPECT_GE(while_saving, of.kills / 6);
  EXPECT_EQ(test::shared_memory_segments(), segments);

  // One more step ends the run. A second run does all these steps without interruption.
  std::vector<std::string> last = command;
  last.emplace_back("exit_interval=1");
  test::expect_done(run_program(last));
  const auto steps = losses(run);
  const int iterations = static_cast<int>(steps.size());
  test::expect_done(run_program(
      train(folder, "whole", of, {"save_interval=100000", "exit_interval=" + std::to_string(iterations)})));
  const Path whole = test::run_folder(folder.path(), "whole");
  EXPECT_EQ(steps, losses(whole));
  EXPECT_EQ(test::final_weights(run, iterations), test::final_weights(whole, iterations));
}

// The cases have 50 kills in all.
INSTANTIATE_TEST_SUITE_P(, RankKills,
                         testing::Values(Case{2, 24, "optim"}, Case{3, 26, "optim_grads_params"}),
                         [](const auto& of) { return "Ranks" + std::to_string(of.param.ranks); });

}  // namespace
}  // namespace primus
