#include "safe/supervise/recovery/time_account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

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

// A supervisor that gives up has lost the steps after the newest checkpoint.
TEST(TimeAccount, ACrashLoopLosesTheStepsAfterTheCheckpoint) {
  TimeAccount account(0);
  account.begin(0, 0);
  double time = 0;
  for (int i = 1; i <= 10; ++i) account.step(i, 1, ++time);
  account.saving(10, time);
  for (int fault = 0; fault < 3; ++fault) {
    for (int i = 11; i <= 15; ++i) account.step(i, 1, ++time);
    account.detected(time);
    account.keeps(10);
    EXPECT_DOUBLE_EQ(account.up_to(time).useful, 10);
    EXPECT_DOUBLE_EQ(account.up_to(time).repeated, 5 * (fault + 1));
    EXPECT_DOUBLE_EQ(sum(account.up_to(time)), time);
    if (fault < 2) account.begin(10, time);
  }
  // Another supervisor of the job knows it, too.
  TimeAccount other(0);
  other.restore(account.save(0), 0, time);
  EXPECT_DOUBLE_EQ(other.up_to(time).useful, 10);
}

// The clocks of two supervisors are an hour apart, and the second one takes the account after ten seconds.
TEST(TimeAccount, AnotherClockChangesNoTimes) {
  for (const double hours : {-1.0, 1.0}) {
    const double ahead = 3600 * hours;
    TimeAccount account(1e9);
    account.begin(0, 1e9 + 5);
    account.step(1, 3, 1e9 + 8);
    account.detected(1e9 + 12);
    TimeAccount other(0);
    other.restore(account.save(0), -ahead, 1e9 + ahead + 22);
    const RunTimes times = other.up_to(1e9 + ahead + 22);
    EXPECT_DOUBLE_EQ(times.wall, 22);
    EXPECT_DOUBLE_EQ(times.useful, 3);
    EXPECT_DOUBLE_EQ(times.restart, 10);
  }
}

TEST(TimeAccount, TimesOfAWallClockThatIsAheadEndNow) {
  TimeAccount account(1000);
  account.begin(0, 1005);
  account.step(1, 3, 1008);
  TimeAccount other(0);
  other.restore(account.save(0), 0, 500);
  const RunTimes times = other.up_to(501);
  EXPECT_DOUBLE_EQ(times.wall, 9);
  EXPECT_DOUBLE_EQ(times.other, 1);
}

// Counts the seconds of each step that the run still has.
class Oracle {
 public:
  void step(std::int64_t step, double seconds) { seconds_[step] = seconds; }
  void lose_after(std::int64_t step) { seconds_.erase(seconds_.upper_bound(step), seconds_.end()); }
  double useful() const {
    double sum = 0;
    for (const auto& [step, seconds] : seconds_) sum += seconds;
    return sum;
  }

 private:
  std::map<std::int64_t, double> seconds_;
};

// In histories of steps, phases, saves, snapshots, faults and starts, the parts add up to the elapsed time at
// each moment, and the useful time is that of the steps that the run still has.
TEST(TimeAccount, PartsAddUpInGeneratedHistories) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto seconds = [&] { return 0.25 * below(40); };
    const double start = 1000 + below(1000);
    double time = start;
    TimeAccount account(start);
    Oracle oracle;
    std::int64_t step = 0, saved = 0, in_memory = 0;
    bool runs = false;
    const auto check = [&](double useful) {
      const double later = time + seconds();
      const RunTimes times = account.up_to(later);
      ASSERT_DOUBLE_EQ(times.wall, later - start) << "seed " << seed;
      ASSERT_NEAR(sum(times), times.wall, 1e-9) << "seed " << seed;
      ASSERT_NEAR(times.useful, useful, 1e-9) << "seed " << seed;
      for (const RunTimes::Part& part : RunTimes::lost()) ASSERT_GE(times.*part.seconds, -1e-9) << part.name;
      ASSERT_LE(times.goodput(), 1);
    };
    for (int i = 0; i < 200; ++i) {
      time += seconds();
      const int what = below(12);
      if (!runs) {
        if (what < 2) {
          account.detected(time);  // a fault before the first step
        } else {
          // The newest snapshot may be incomplete, and the newest checkpoint is then used.
          step = what < 8 ? std::max(saved, in_memory) : saved;
          in_memory = std::min(in_memory, step);
          account.begin(step, time);
          oracle.lose_after(step);
          runs = true;
        }
      } else if (what < 6) {
        const double length = seconds();
        time += length;
        account.step(++step, length, time);
        oracle.step(step, length);
      } else if (what == 6) {
        account.phase(below(2) ? "evaluating" : "", time);
      } else if (what == 7) {
        account.saving(saved = step, time);
      } else if (what == 8) {
        account.copying(in_memory = step, time);
      } else if (what == 9) {
        account.detected(time);
        account.keeps(std::max(saved, in_memory));
        runs = false;
      }
      Oracle kept = oracle;
      if (!runs) kept.lose_after(std::max(saved, in_memory));
      check(kept.useful());
    }
  }
}

}  // namespace
}  // namespace primus::supervise
