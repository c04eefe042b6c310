// Kills runs at random moments, also while they save, and restarts them until they end. Their losses and
// weights equal those of an uninterrupted run, bit for bit.
#include <gtest/gtest.h>

#include <random>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::Program;
using test::ProgramResult;
using test::TemporaryFolder;

constexpr int kIterations = 40, kKills = 20;

// Saves every second step, so that a save is often in flight.
std::vector<std::string> command(const Path& workspace, const std::string& name) {
  return test::train(workspace, {"train_iters=" + std::to_string(kIterations), "save_interval=2",
                                 "keep_latest=2", "exp_name=" + name});
}

TEST(Kill, AKilledAndRestartedRunEqualsAnUninterruptedRun) {
  const TemporaryFolder folder;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(test::run_program(command(folder.path(), "straight")).exit_code, 0);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  const auto expected = test::losses(test::run_folder(folder.path(), "straight"));
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(kIterations));

  std::mt19937 random(20260101);  // a fixed seed gives the same moments in every test run
  int kills = 0;
  for (int attempt = 0; kills < kKills; ++attempt) {
    ASSERT_LT(attempt, 20) << "runs end before they are killed";
    const std::string name = "killed-" + std::to_string(attempt);
    for (int starts = 0;; ++starts) {
      ASSERT_LT(starts, 200) << "no progress between kills";
      Program program(command(folder.path(), name));
      // A kill comes at a random time between the start and 70 % of a run. So each run is killed several
      // times.
      const std::chrono::duration<double> life =
          whole * (kills < kKills ? std::uniform_real_distribution(0.02, 0.7)(random) : 1000.0);
      const auto end = std::chrono::steady_clock::now() + life;
      while (program.running() && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      program.send(SIGKILL);
      const ProgramResult result = program.wait();
      if (result.signal == SIGKILL) {
        ++kills;
        continue;
      }
      ASSERT_EQ(result.exit_code, 0) << result.err;
      break;
    }
    const Path run = test::run_folder(folder.path(), name);
    EXPECT_EQ(test::losses(run), expected) << name;
    EXPECT_EQ(test::final_weights(run, kIterations),
              test::final_weights(test::run_folder(folder.path(), "straight"), kIterations))
        << name;
  }
}

}  // namespace
}  // namespace primus
