#include "safe/supervise/time_account.h"

#include <gtest/gtest.h>

namespace primus::supervise {
namespace {

double sum(const RunTimes& times) {
  double all = times.useful;
  for (const RunTimes::Part& part : RunTimes::lost()) all += times.*part.seconds;
  return all;
}

TEST(TimeAccount, DividesTheWholeTimeIntoItsParts) {
  TimeAccount account(100);
  account.begin(0, 105);                                           // 5 s of start-up
  for (int i = 1; i <= 4; ++i) account.step(i, 2, 105 + 2.5 * i);  // steps of 2 s, 0.5 s between them
  account.saving(4, 115);
  account.step(5, 2, 120);  // 3 s of waiting for the save
  account.phase("evaluating", 120);
  account.phase("", 127);
  account.step(6, 2, 129);
  account.detected(130);  // a fault within a step
  RunTimes times = account.up_to(140);
  EXPECT_DOUBLE_EQ(times.wall, 40);
  EXPECT_DOUBLE_EQ(times.startup, 5);
  EXPECT_DOUBLE_EQ(times.useful, 12);
  EXPECT_DOUBLE_EQ(times.other, 2);
  EXPECT_DOUBLE_EQ(times.checkpoints, 3);
  EXPECT_DOUBLE_EQ(times.phases, 7);
  EXPECT_DOUBLE_EQ(times.detection, 1);
  EXPECT_DOUBLE_EQ(times.restart, 10);
  EXPECT_DOUBLE_EQ(sum(times), times.wall);
  account.begin(4, 140);  // steps 5 and 6 are lost
  account.step(5, 2, 142);
  times = account.up_to(142);
  EXPECT_DOUBLE_EQ(times.repeated, 4);
  EXPECT_DOUBLE_EQ(times.useful, 10);
  EXPECT_DOUBLE_EQ(sum(times), times.wall);
  EXPECT_DOUBLE_EQ(times.goodput(), 10.0 / 42);
}

TEST(TimeAccount, ASnapshotKeepsTheUsefulTimeAndACheckpointRemains) {
  TimeAccount account(0);
  account.begin(0, 0);
  constexpr int kSnapshots = 3000;  // more than the marks that are kept
  for (int i = 1; i <= kSnapshots; ++i) {
    account.step(i, 1, i);
    if (i == 10) account.saving(i, i);
    account.copying(i, i);
  }
  account.detected(kSnapshots);
  account.begin(kSnapshots - 1, kSnapshots);  // the newest snapshot was incomplete
  RunTimes times = account.up_to(kSnapshots);
  EXPECT_DOUBLE_EQ(times.repeated, 1);
  EXPECT_DOUBLE_EQ(times.checkpoints, 0);
  account.detected(kSnapshots);
  account.begin(10, kSnapshots);  // no snapshot could be used
  times = account.up_to(kSnapshots);
  EXPECT_DOUBLE_EQ(times.useful, 10);
  EXPECT_DOUBLE_EQ(sum(times), times.wall);
}

TEST(TimeAccount, AnOlderCheckpointLosesMore) {
  TimeAccount account(0);
  account.begin(100, 0);  // a resumed run
  for (int i = 1; i <= 30; ++i) {
    account.step(100 + i, 1, i);
    if (i % 10 == 0) account.saving(100 + i, i);
  }
  account.detected(30);
  account.begin(110, 30);  // the newest two checkpoints are damaged
  EXPECT_DOUBLE_EQ(account.up_to(30).useful, 10);
  EXPECT_DOUBLE_EQ(account.up_to(30).repeated, 20);
  account.detected(31);
  account.begin(0, 31);
  EXPECT_DOUBLE_EQ(account.up_to(31).useful, 0);
  EXPECT_DOUBLE_EQ(account.up_to(31).repeated, 30);
}

TEST(TimeAccount, AFaultBeforeTheFirstStepIsStartUp) {
  TimeAccount account(0);
  account.detected(3);
  account.begin(0, 5);
  const RunTimes times = account.up_to(5);
  EXPECT_DOUBLE_EQ(times.startup, 3);
  EXPECT_DOUBLE_EQ(times.restart, 2);
}

TEST(TimeAccount, ClocksThatGoBackMakeNoNegativeTimes) {
  TimeAccount account(10);
  account.begin(0, 12);
  account.step(1, 5, 8);
  account.step(2, 5, 13);
  const RunTimes times = account.up_to(9);
  EXPECT_DOUBLE_EQ(times.wall, 3);
  EXPECT_DOUBLE_EQ(times.useful, 1);
  EXPECT_DOUBLE_EQ(sum(times), times.wall);
}

}  // namespace
}  // namespace primus::supervise
