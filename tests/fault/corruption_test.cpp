// Runs whose bits are damaged on purpose (PRIMUS_FLIP_BIT): the checks for silent corruption name the rank,
// and a supervised run continues from before the damage, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "fault/ranks.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

using test::losses;
using test::ProgramOptions;
using test::ProgramResult;
using test::run_folder;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSteps = 40;

class Corruption : public ::testing::Test {
 protected:
  std::vector<std::string> train(const std::string& name, int ranks, const std::string& sharding,
                                 std::vector<std::string> more) const {
    more.insert(more.begin(), {"num_layers=2", "hidden_size=24", "ffn_hidden_size=48",
                               "num_attention_heads=2", "global_batch_size=12", "micro_batch_size=2",
                               "train_iters=" + std::to_string(kSteps), "save_interval=10", "--quiet"});
    return test::train_ranks(folder_, name, ranks, sharding, std::move(more));
  }
  static ProgramOptions flip(const std::string& where) {
    return {.environment = {{"PRIMUS_FLIP_BIT", where}}};
  }
  Path run(const std::string& name) const { return run_folder(folder_.path(), name); }
  bool has_checkpoint(const std::string& name, const std::string& place) const {
    return std::filesystem::exists(run(name) / "checkpoints" / place);
  }
  void expect_equal(const std::string& name, const std::string& whole) const {
    EXPECT_EQ(losses(run(name)), losses(run(whole)));
    EXPECT_FALSE(test::final_weights(run(name), kSteps).empty());
    EXPECT_EQ(test::final_weights(run(name), kSteps), test::final_weights(run(whole), kSteps));
  }

  TemporaryFolder folder_;
};

TEST_F(Corruption, AWeightThatDiffersNamesItsRankAndIsNotSaved) {
  const std::vector<std::string> checks = {"check_weight_hash_across_dp_replicas_interval=5"};
  ProgramResult result = run_program(train("one", 3, "no_shard", checks), flip("parameter:1:20"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("silent corruption: rank 1 was found to hold other bits of "),
                                HasSubstr("than 2 ranks with copies after step 20"),
                                HasSubstr("the last good check of this kind was after step 15"),
                                HasSubstr("continues from step 10")));
  EXPECT_FALSE(has_checkpoint("one", "iter_0000020"));
  result = run_program({"postmortem", run("one").string()});
  EXPECT_THAT(result.out, AllOf(HasSubstr("silent-corruption"), HasSubstr("rank 1")));

  test::expect_done(run_program(train("whole", 3, "no_shard", {})));
  std::vector<std::string> supervised = checks;
  supervised.emplace_back("--supervise");
  result = run_program(train("supervised", 3, "no_shard", supervised), flip("parameter:2:20"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("supervise: restart 1 of"));
  expect_equal("supervised", "whole");
}

TEST_F(Corruption, OfTwoRanksBothAreNamed) {
  const ProgramResult result = run_program(
      train("two", 2, "optim", {"check_weight_hash_across_dp_replicas_interval=5"}), flip("parameter:1:5"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("ranks 0 and 1 were found to hold different bits of "),
                                HasSubstr("no majority"), HasSubstr("starts from the beginning")));
}

// The run has had good checks, but no checkpoint up to the last of them.
TEST_F(Corruption, ARunWithoutACheckpointBeforeTheDamageBeginsAgain) {
  test::expect_done(run_program(train("whole", 2, "optim", {})));
  const std::vector<std::string> command = train("again", 2, "optim", {"replay_step_interval=8"});
  const ProgramResult result = run_program(command, flip("gradient:1:16"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the last good check of this kind was after step 8"),
                                HasSubstr("suspect-1'; the same command starts from the beginning")));
  EXPECT_TRUE(has_checkpoint("again", "suspect-1/iter_0000010"));
  test::expect_done(run_program(command));
  expect_equal("again", "whole");
}

// A process was killed after a finding, before it had moved the checkpoints.
TEST_F(Corruption, TheNextProcessMovesTheCheckpointsOfAKilledOne) {
  test::expect_done(run_program(train("whole", 2, "optim", {})));
  const std::vector<std::string> command = train("noted", 2, "optim", {"exit_interval=25"});
  test::expect_done(run_program(command));
  const Path note = run("noted") / "checkpoints" / ".suspect-after";
  write_file(note, "15");
  test::expect_done(run_program(train("noted", 2, "optim", {})));
  EXPECT_TRUE(has_checkpoint("noted", "suspect-1/iter_0000020"));
  EXPECT_TRUE(has_checkpoint("noted", "suspect-1/iter_0000025"));
  EXPECT_FALSE(std::filesystem::exists(note));
  expect_equal("noted", "whole");
  // The process that was killed had continued from a later checkpoint.
  write_file(note, "5 not from the beginning");
  const ProgramResult result = run_program(train("noted", 2, "optim", {"train_iters=45"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no checkpoint from before the damage is left"));
  EXPECT_TRUE(has_checkpoint("noted", "iter_0000040"));
}

// Copies are compared before each snapshot, too, so that a restart from memory cannot hide the damage.
TEST_F(Corruption, ADamagedStateBecomesNoSnapshot) {
  test::expect_done(run_program(train("whole", 3, "no_shard", {})));
  const ProgramResult result = run_program(
      train("snapshots", 3, "no_shard",
            {"check_weight_hash_across_dp_replicas_interval=20", "snapshot_interval=5", "--supervise"}),
      flip("parameter:1:15"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 was found to hold other bits of "),
                                HasSubstr("than 2 ranks with copies after step 15"),
                                HasSubstr("supervise: restart 1 of")));
  expect_equal("snapshots", "whole");
}

// The checkpoint of step 20 is newer than the last good replay, so the run continues from that of step 10.
TEST_F(Corruption, AWrongGradientIsFoundByComputingTheStepAgain) {
  test::expect_done(run_program(train("whole", 2, "optim", {})));
  const ProgramResult result =
      run_program(train("replayed", 2, "optim", {"replay_step_interval=8", "keep_latest=1", "--supervise"}),
                  flip("gradient:1:24"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 was found to compute other gradients when step 24 was"),
                                HasSubstr("supervise: restart 1 of")));
  EXPECT_TRUE(has_checkpoint("replayed", "suspect-1/iter_0000020"));
  expect_equal("replayed", "whole");
}

TEST_F(Corruption, AWrongProductIsAWarningIfTheRunShallContinue) {
  test::expect_done(run_program(train("whole", 1, "optim", {})));
  const ProgramResult result =
      run_program(train("warned", 1, "optim",
                        {"golden_product_interval=6", "replay_step_interval=7", "corruption_action=warn"}),
                  flip("product:0:18"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<RunWarning> warnings = recorded_warnings(run("warned") / "warnings.jsonl");
  ASSERT_EQ(warnings.size(), 1U);  // once, although all later products are wrong, too
  EXPECT_EQ(warnings[0].detector, "silent_corruption");
  EXPECT_THAT(warnings[0].text,
              HasSubstr("rank 0 was found to compute a fixed matrix product with other bits"));
  expect_equal("warned", "whole");
}

TEST_F(Corruption, SettingsThatCannotWorkAreRefused) {
  ProgramResult result =
      run_program(train("refused", 1, "optim", {"replay_step_interval=8", "deterministic_mode=false"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("deterministic_mode"));
  result = run_program(train("switch", 1, "optim", {"golden_product_interval=8"}), flip("everything"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("is not WHERE:RANK:STEP"));
}

}  // namespace
}  // namespace primus
