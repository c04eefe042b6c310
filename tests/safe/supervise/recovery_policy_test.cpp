#include "safe/supervise/recovery/recovery_policy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primus::supervise {
namespace {

using ::testing::HasSubstr;
using enum Action::Kind;

// An attempt that began at `began`, saved `checkpoint` and ended at `step`.
JobEnd end_at(EndKind kind, std::int64_t began, std::int64_t checkpoint, std::int64_t step, double time = 0) {
  return {.kind = kind,
          .exit_code = 3,
          .rank = 1,
          .began = began,
          .step = step,
          .checkpoint = checkpoint,
          .text = "rank 1 was lost",
          .time = time};
}

TEST(RecoveryPolicy, EndsWithTheJob) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide({.kind = EndKind::kDone}).kind, kFinish);
  EXPECT_EQ(policy.decide({.kind = EndKind::kStopped, .exit_code = 130}).kind, kFinish);
  EXPECT_EQ(policy.restarts(), 0);
}

TEST(RecoveryPolicy, DoesNotRepeatWhatARestartCannotCure) {
  RecoveryPolicy policy({});
  const Action refused = policy.decide({.kind = EndKind::kRefused, .exit_code = 2, .text = "lr is 1e30"});
  EXPECT_EQ(refused.kind, kGiveUp);
  EXPECT_EQ(refused.reason, "refused");
  EXPECT_THAT(refused.text, HasSubstr("before its first step: lr is 1e30"));
  const Action limited =
      policy.decide({.kind = EndKind::kFileLimit, .exit_code = 2, .text = "File too large"});
  EXPECT_EQ(limited.kind, kGiveUp);
  EXPECT_THAT(limited.hint, HasSubstr("ulimit -f"));
}

TEST(RecoveryPolicy, ASnapshotInMemoryIsProgress) {
  RecoveryPolicy policy({});
  for (int i = 0; i < 15; ++i) {
    JobEnd end = end_at(EndKind::kLostRank, 100 + 10 * i, 100, 115 + 10 * i);
    end.snapshot = 110 + 10 * i;
    const Action action = policy.decide(end);
    EXPECT_EQ(action.kind, kRestart);
    EXPECT_EQ(action.delay, 0);
  }
}

TEST(RecoveryPolicy, RestartsAtOnceAfterProgressAndElseWithADelay) {
  RecoveryPolicy policy({.loop = 100, .max_delay = 10});
  const auto delay = [&](std::int64_t began, std::int64_t checkpoint, std::int64_t step) {
    const Action action = policy.decide(end_at(EndKind::kKilled, began, checkpoint, step));
    EXPECT_EQ(action.kind, kRestart);
    return action.delay;
  };
  EXPECT_EQ(delay(0, 10, 12), 0);
  EXPECT_EQ(delay(10, 10, 13), 1);
  EXPECT_EQ(delay(10, 10, 14), 2);
  EXPECT_EQ(delay(10, 10, 15), 4);
  EXPECT_EQ(delay(10, 10, 16), 8);
  EXPECT_EQ(delay(10, 10, 17), 10);
  EXPECT_EQ(delay(10, 20, 21), 0);
  EXPECT_EQ(delay(20, 20, 22), 1);
  EXPECT_EQ(policy.restarts(), 8);
}

TEST(RecoveryPolicy, AResumedRunHasNoProgressBeforeItsFirstCheckpoint) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 100, 100, 105)).delay, 1);
}

// A checkpoint whose record was lost with the process, but from which the next attempt began, is progress.
TEST(RecoveryPolicy, AnUnrecordedCheckpointIsProgress) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 0, 0, 10)).delay, 1);
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 0, 0, 11)).delay, 2);
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 11, 11, 14)).delay, 1);
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 14, 14, 17)).delay, 1);
}

// After a rollback, a checkpoint of a step that had been saved before is progress.
TEST(RecoveryPolicy, CheckpointsBehindSilentCorruptionCountAgain) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 0, 30, 35)).delay, 0);
  const Action action = policy.decide(end_at(EndKind::kCorruption, 30, 10, 36));
  EXPECT_EQ(action.kind, kRestart);
  EXPECT_EQ(action.reason, "silent corruption");
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 10, 20, 25)).delay, 0);
}

TEST(RecoveryPolicy, NamesACrashLoopWithoutCheckpoint) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kKilled, 0, 0, 1)).kind, kRestart);
  EXPECT_EQ(policy.decide(end_at(EndKind::kLostRank, 0, 0, 2)).kind, kRestart);
  const Action last = policy.decide(end_at(EndKind::kError, 0, 0, 3));
  EXPECT_EQ(last.kind, kGiveUp);
  EXPECT_EQ(last.reason, "crash loop");
  EXPECT_THAT(last.text, HasSubstr("3 times in a row without a new checkpoint"));
  EXPECT_THAT(last.text, HasSubstr("error, rank 1, step 3: rank 1 was lost"));
  EXPECT_THAT(last.hint, HasSubstr("save_interval"));
}

// Independent faults of several ranks are no crash loop until ten of them in a row.
TEST(RecoveryPolicy, FaultsOfSeveralRanksMayOccurInARow) {
  RecoveryPolicy policy({});
  JobEnd end = end_at(EndKind::kLostRank, 0, 0, 5);
  for (int rank = 1; rank < 10; ++rank) {
    end.rank = rank;
    end.text = fmt::format("rank {} was lost", rank);
    EXPECT_EQ(policy.decide(end).kind, kRestart) << rank;
  }
  end.rank = 10;
  EXPECT_EQ(policy.decide(end).reason, "crash loop");
}

// A lost node names no rank.
TEST(RecoveryPolicy, LossesOfSeveralNodesMayOccurInARow) {
  RecoveryPolicy policy({});
  JobEnd end = end_at(EndKind::kLostNode, 0, 0, 5);
  end.rank.reset();
  for (int node = 1; node < 5; ++node) {
    end.node = node;
    end.text = fmt::format("node {} was lost", node);
    EXPECT_EQ(policy.decide(end).kind, kRestart) << node;
  }
}

// The first of the three ends had a new checkpoint, but the fault is always the same.
TEST(RecoveryPolicy, NamesTheSameErrorInTheSameStep) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kError, 0, 6, 7)).kind, kRestart);
  EXPECT_EQ(policy.decide(end_at(EndKind::kError, 6, 6, 7)).kind, kRestart);
  const Action last = policy.decide(end_at(EndKind::kError, 6, 6, 7));
  EXPECT_EQ(last.reason, "crash loop");
  EXPECT_THAT(last.text, HasSubstr("the same fault (error) ended the job 3 times in a row: rank 1, step 7"));
}

TEST(RecoveryPolicy, ANanInTheSameStepIsDeterministic) {
  RecoveryPolicy policy({});
  EXPECT_EQ(policy.decide(end_at(EndKind::kNan, 0, 6, 7)).kind, kRestart);
  const Action last = policy.decide(end_at(EndKind::kNan, 6, 6, 7));
  EXPECT_EQ(last.kind, kGiveUp);
  EXPECT_EQ(last.reason, "deterministic NaN");
}

TEST(RecoveryPolicy, NansInOtherStepsAreNot) {
  RecoveryPolicy policy({});
  for (int i = 1; i < 8; ++i)
    EXPECT_EQ(policy.decide(end_at(EndKind::kNan, 6 * i - 6, 6 * i, 6 * i + 1)).kind, kRestart) << i;
}

TEST(RecoveryPolicy, SpendsItsBudgetOnlyWithinADay) {
  RecoveryPolicy policy({.max_restarts = 3});
  const auto kind = [&](int number, double hours) {
    return policy
        .decide(end_at(EndKind::kKilled, 10 * number, 10 * number + 10, 10 * number + 15, 3600 * hours))
        .kind;
  };
  EXPECT_EQ(kind(1, 0), kRestart);
  EXPECT_EQ(kind(2, 10), kRestart);
  EXPECT_EQ(kind(3, 20), kRestart);
  EXPECT_EQ(kind(4, 25), kRestart);  // the first one is older than a day
  EXPECT_EQ(kind(5, 33), kGiveUp);
  RecoveryPolicy none({.max_restarts = 0});
  const Action action = none.decide(end_at(EndKind::kKilled, 0, 10, 12));
  EXPECT_EQ(action.kind, kGiveUp);
  EXPECT_THAT(action.text, HasSubstr("--max-restarts"));
}

// A machine that is lost in the same step again and again makes a crash loop.
TEST(RecoveryPolicy, ALostNodeIsRestarted) {
  RecoveryPolicy policy({});
  JobEnd end = end_at(EndKind::kLostNode, 0, 10, 12);
  end.node = 1;
  end.text = "node 1 (a) was lost: its connection ended";
  EXPECT_EQ(policy.decide(end).kind, kRestart);
  EXPECT_EQ(policy.decide(end).reason, "lost node");
  const Action action = policy.decide(end);
  EXPECT_EQ(action.kind, kGiveUp);
  EXPECT_THAT(action.text, HasSubstr("node 1 (a) was lost"));
  EXPECT_THAT(action.hint, HasSubstr("--exclude"));
}

TEST(RecoveryPolicy, AFullDiskWaitsForSpace) {
  RecoveryPolicy policy({});
  JobEnd end = end_at(EndKind::kDiskFull, 0, 10, 12);
  end.free_bytes = 1 << 20;
  end.checkpoint_bytes = std::uint64_t{1} << 30;
  const Action action = policy.decide(end);
  EXPECT_EQ(action.kind, kRestart);
  EXPECT_EQ(action.free_bytes, (std::uint64_t{1153} << 20));  // a checkpoint, an eighth of it, and 1 MiB
  end.free_bytes = std::uint64_t{4} << 30;
  end.step = 13;
  EXPECT_EQ(policy.decide(end).free_bytes, std::uint64_t{8} << 30);
}

}  // namespace
}  // namespace primus::supervise
