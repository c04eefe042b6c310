// Tests of runs that are asked to stop: they save and end with exit code 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"
#include "fault/long_runs.h"

namespace primus {
namespace {

using test::kLong;
using test::Program;
using test::ProgramResult;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(Stop, SignalsSaveAndEndWithCodeZero) {
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) {
    const TemporaryFolder folder;
    const Path run = test::run_folder(folder.path());
    Program program(test::train(folder.path(), kLong));
    ASSERT_TRUE(wait_until([&] { return test::losses(run).size() >= 3; }));
    program.send(signal_number);
    const auto asked = std::chrono::steady_clock::now();
    const ProgramResult result = program.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - asked, 10s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("run the same command again to continue"));

    // Nothing is lost: the next run starts after the last recorded iteration.
    const auto done = static_cast<std::int64_t>(test::losses(run).size());
    const ProgramResult next = test::run_program(
        test::train(folder.path(), {"train_iters=100000", "save_interval=100000", "exit_interval=1"}));
    EXPECT_EQ(next.exit_code, 0) << next.err;
    EXPECT_THAT(next.err, HasSubstr("iteration " + std::to_string(done)));
    EXPECT_EQ(test::losses(run).size(), static_cast<std::size_t>(done) + 1);
  }
}

// If standard error is closed, the next opened file gets its number. Messages must not be written into this
// file.
TEST(Stop, WithClosedStreamsMessagesAreDropped) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  const ProgramResult result =
      test::run_program(test::train(folder.path(), {"train_iters=2"}), {.closed_errors = true});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(read_file(run / ".lock"), "");
  EXPECT_EQ(test::losses(run).size(), 2U);
}

// A stop request aborts a step with many microbatches. The aborted step does not change the weights.
TEST(Stop, DoesNotWaitForALongStep) {
  const TemporaryFolder folder, whole;
  const Path run = test::run_folder(folder.path());
  const std::vector<std::string> common = {"train_iters=2", "global_batch_size=400", "num_layers=1"};
  const auto with = [&](const Path& workspace, const std::vector<std::string>& more) {
    std::vector<std::string> words = test::train(workspace, common);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  Program program(with(folder.path(), {}));
  ASSERT_TRUE(wait_until([&] { return test::losses(run).size() >= 1; }));
  std::this_thread::sleep_for(50ms);
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto done = test::losses(run).size();
  EXPECT_EQ(done, 1U) << "the run finished its step";
  ASSERT_EQ(test::run_program(with(folder.path(), {})).exit_code, 0);
  ASSERT_EQ(test::run_program(with(whole.path(), {})).exit_code, 0);
  EXPECT_EQ(test::losses(run), test::losses(test::run_folder(whole.path())));
}

TEST(Stop, ASecondRunInTheSameFolderIsRefused) {
  const TemporaryFolder folder;
  Program program(test::train(folder.path(), kLong));
  ASSERT_TRUE(wait_until([&] { return test::losses(test::run_folder(folder.path())).size() >= 1; }));
  const ProgramResult second = test::run_program(test::train(folder.path(), kLong));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("another process is training in"));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
}

// Returns whether the program has not yet handled a SIGINT.
bool interrupt_is_pending(const Program& program) {
  std::ifstream status("/proc/" + std::to_string(program.pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("ShdPnd:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
  }
  return false;
}

// Returns how long the program has computed, in seconds of processor time outside of the system.
double computed_seconds(const Program& program) {
  std::ifstream stat("/proc/" + std::to_string(program.pid()) + "/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  constexpr int kUserTime = 12;  // field of proc(5), counted from the state
  std::string field;
  for (int i = 0; i < kUserTime; ++i) fields >> field;
  return std::atof(field.c_str()) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST(Stop, ASecondSignalEndsAtOnce) {
  const TemporaryFolder folder;
  // Attention over a long sequence is one kernel of about four seconds, which a stop request cannot
  // interrupt. Before it, the step computes for less than 0.1 s.
  Program program(test::train(folder.path(), {"train_iters=100", "micro_batch_size=1", "global_batch_size=1",
                                              "seq_length=65536", "num_layers=1"}));
  const Path events = test::run_folder(folder.path()) / "events" / "rank-00000.jsonl";
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(events); })) << "it trains";
  const double begun = computed_seconds(program);
  ASSERT_TRUE(wait_until([&] { return computed_seconds(program) > begun + 1; })) << "in the kernel";
  program.send(SIGINT);
  ASSERT_TRUE(wait_until([&] { return !interrupt_is_pending(program); }));
  std::this_thread::sleep_for(200ms);  // signals within 100 ms are one request
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.signal, SIGTERM) << result.exit_code << result.out << result.err;
}

TEST(Stop, TwoQuickSignalsAreOneRequest) {
  const TemporaryFolder folder;
  Program program(test::train(folder.path(), kLong));
  ASSERT_TRUE(wait_until([&] { return test::losses(test::run_folder(folder.path())).size() >= 1; }));
  for (const int signal_number : {SIGINT, SIGTERM, SIGINT}) program.send(signal_number);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.signal << result.err;
  EXPECT_THAT(result.out, HasSubstr("run the same command again to continue"));
}

}  // namespace
}  // namespace primus
