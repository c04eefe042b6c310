#include "safe/supervise/recovery/event_clock.h"

#include <gtest/gtest.h>

#include <vector>

#include "safe/supervise/recovery/time_account.h"

namespace primus::supervise {
namespace {

// A run of 20 steps of 1 s, which begins 5 s after its start at 1000 s. Before the step `at`, the wall clock
// of rank 0 is set by `jump` seconds; `skew`: its difference from the supervisor's clock from the start.
RunTimes times(double skew, int at, double jump) {
  EventClock clock;
  TimeAccount account(1000);
  clock.attempt(1000);
  account.begin(0, clock.at(1005 + skew, 1005.1));
  for (int step = 1; step <= 20; ++step) {
    const double time = 1005 + step;
    account.step(step, 1, clock.at(time + skew + (step >= at ? jump : 0), time + 0.1));
  }
  return account.up_to(1025.1);
}

TEST(EventClock, KeepsTheTimesOfEventsOnOneClock) {
  const RunTimes found = times(0, 30, 0);
  EXPECT_NEAR(found.useful, 20, 1e-6);
  EXPECT_NEAR(found.startup, 5, 1e-6);
  EXPECT_NEAR(found.wall, 25.1, 1e-6);
}

// At most the time between two events is lost, and no time is added.
TEST(EventClock, ASetClockChangesNoDuration) {
  for (const double jump : {-3600.0, -30.0, -1.5, 1.5, 30.0, 3600.0}) {
    for (const int at : {1, 10, 20}) {
      SCOPED_TRACE(testing::Message() << jump << " s before step " << at);
      const RunTimes found = times(0, at, jump);
      EXPECT_NEAR(found.wall, 25.1, 1e-6);
      EXPECT_GE(found.useful, 19 - 1e-6);
      EXPECT_LE(found.useful, 20 + 1e-6);
      EXPECT_NEAR(found.startup, 5, 1e-6);
    }
  }
}

TEST(EventClock, AnotherMachinesClockMayDiffer) {
  for (const double skew : {-86400.0, -10.0, 10.0, 86400.0}) {
    SCOPED_TRACE(skew);
    const RunTimes found = times(skew, 30, 0);
    EXPECT_NEAR(found.wall, 25.1, 1e-6);
    EXPECT_NEAR(found.useful, 20, 1e-6);
    EXPECT_LE(found.startup, 5.1 + 1e-6);
  }
}

// The supervisor was blocked, and reads a minute of events at once.
TEST(EventClock, LateEventsKeepTheirDistances) {
  EventClock clock;
  clock.attempt(1000);
  std::vector<double> found;
  for (const double time : {1001.0, 1002.0, 1050.0, 1060.0}) found.push_back(clock.at(time, 1060.5));
  EXPECT_EQ(found, (std::vector<double>{1001, 1002, 1050, 1060}));
  // The next attempt is later than all events of this one.
  clock.attempt(1070);
  EXPECT_DOUBLE_EQ(clock.at(1071, 1071.1), 1071);
}

}  // namespace
}  // namespace primus::supervise
