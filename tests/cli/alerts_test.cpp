// Tests of alerts in whole runs, of 'primus alerts test' and of 'primus watch'.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

std::string rule(const std::string& text) { return "alerts=[\"" + text + "\"]"; }

TEST(AlertCommands, ARunSendsItsEnd) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "got";
  const ProgramResult result = run_program(
      test::train(folder.path(), {"train_iters=3", rule("finished -> run:cat > " + file.string())}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json got = json::parse(std::ifstream(file));
  EXPECT_EQ(got.at("condition"), "finished");
  EXPECT_EQ(got.at("step"), 3);
  EXPECT_EQ(got.at("run"), test::run_folder(folder.path()).string());
}

TEST(AlertCommands, AFailingAlertDoesNotFailTheRun) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      test::train(folder.path(), {"train_iters=3", rule("finished -> http://127.0.0.1:1/?token=abcdef")}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("an alert was not sent by the webhook at 127.0.0.1:1"),
                                Not(HasSubstr("abcdef"))));
}

TEST(AlertCommands, AWrongRuleIsRefusedBeforeTraining) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(test::train(folder.path(), {rule("los > 3 -> run:cat")}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("'los' is not a metric"));
}

TEST(AlertCommands, TheTestSendsByEachRule) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "got";
  ASSERT_EQ(run_program(test::train(folder.path(), {"train_iters=1"})).exit_code, 0);
  const std::string experiment = (test::run_folder(folder.path()) / "experiment.yaml").string();
  ProgramResult result =
      run_program({"alerts", "test", "--config", experiment, rule("fault -> run:cat > " + file.string())});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("sent by the program 'cat'"));
  EXPECT_EQ(json::parse(std::ifstream(file)).at("cause"), "test");
  result = run_program({"alerts", "test", "--config", experiment, rule("fault -> run:false")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("not sent by the program 'false': it ended with code 1"));
  result = run_program({"alerts", "test", "--config", experiment, rule("fault -> run:no-such-program")});
  EXPECT_THAT(result.out, HasSubstr("it ended with code 127: the shell did not find a program"));
  result = run_program({"alerts", "test", "--config", experiment});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no rule in 'alerts'"), HasSubstr("failed -> run:./notify.sh")));
}

TEST(WatchCommand, ALookIsOneLine) {
  const ProgramResult result = run_program({"watch", "--looks", "2", "--interval", "1", "--skip-dmesg"});
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json look = json::parse(line);
    EXPECT_EQ(result.exit_code, look.at("verdict") == "fail" ? 2 : 0) << line;
    EXPECT_FALSE(look.contains("drain"));
  }
  EXPECT_EQ(count, 2) << result.err;
}

TEST(WatchCommand, ADryRunNeedsADrain) {
  const ProgramResult result = run_program({"watch", "--dry-run"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--dry-run has no effect without --drain"));
}

// With several ranks, the log names the rank whose operator produced the NaN.
TEST(NaNOnRanks, TheRankIsNamed) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      test::train(folder.path(), {"--nproc=2", "train_iters=5", "lr=1000", "min_lr=1000", "lr_warmup_iters=0",
                                  "weight_decay=1e38", "global_batch_size=4"}));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the first operator with such a result is embedding on rank 0"));
}

}  // namespace
}  // namespace primus
