#include "safe/supervise/observation/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primus::supervise {
namespace {

using ::testing::HasSubstr;

// A job in virtual time. Looks at the watch every 0.2 s, as the supervisor does.
struct Job {
  explicit Job(HangLimits limits = {}) : watch(limits, 0) {}

  // Lets time pass. Returns the finding, if there is one.
  std::optional<HangFinding> pass(double seconds) {
    for (const double end = now + seconds; now < end;) {
      now += 0.2;
      processor += 0.2 * busy;
      std::optional<JobSample> sample;
      if (watch.wants_sample(now)) {
        sample = JobSample{.time = now,
                           .processor_seconds = processor,
                           .bytes = bytes,
                           .waits_for_disk = disk,
                           .waits_for_reader = unread,
                           .stopped = stopped};
      }
      if (auto finding = watch.check(now, sample)) return finding;
    }
    return std::nullopt;
  }
  void steps(int count, double seconds) {
    for (int i = 0; i < count; ++i) {
      EXPECT_FALSE(pass(seconds));
      watch.step(seconds, now);
    }
  }

  HangWatch watch;
  double now = 0, processor = 0, busy = 0;
  std::uint64_t bytes = 0;
  bool disk = false, unread = false;
  std::optional<int> stopped = {};
};

Job training(double step, HangLimits limits = {}) {
  Job job(limits);
  job.watch.begin(0);
  job.steps(20, step);
  return job;
}

TEST(HangWatch, FindsAnIdleJobAfterTenSeconds) {
  Job job = training(0.4);
  const double sign = job.now;
  const auto found = job.pass(60);
  ASSERT_TRUE(found);
  EXPECT_NEAR(job.now - sign, 10, 0.5);
  EXPECT_THAT(found->text, HasSubstr("although steps take 0.4 s, and no process works"));
}

TEST(HangWatch, GivesLongStepsThreeTimesTheirTime) {
  Job job = training(20);
  const double sign = job.now;
  ASSERT_TRUE(job.pass(200));
  EXPECT_NEAR(job.now - sign, 60, 0.5);
}

TEST(HangWatch, LetsRanksReportAHungPeerFirst) {
  Job job = training(0.4, {.for_ranks = 5});
  const double sign = job.now;
  ASSERT_TRUE(job.pass(60));
  EXPECT_NEAR(job.now - sign, 15, 0.5);
}

TEST(HangWatch, DoesNotEndASlowJobThatWorks) {
  for (int way = 0; way < 3; ++way) {
    Job job = training(0.4);
    job.busy = way == 0 ? 1 : 0;
    job.disk = way == 1;
    const double sign = job.now;
    bool found = false;
    for (int i = 0; i < 1000 && !found; ++i) {
      if (way == 2) ++job.bytes;
      found = job.pass(1).has_value();
    }
    EXPECT_TRUE(found);
    EXPECT_NEAR(job.now - sign, 610, 1) << way;  // the limit of a step, and ten minutes
  }
}

TEST(HangWatch, WaitsInPhasesUntilNothingWorkedForTenMinutes) {
  for (const std::string phase : {"evaluating on validation data", "saving", "starting", "first step"}) {
    Job job = phase == "starting" || phase == "first step" ? Job() : training(0.4);
    if (phase == "first step") job.watch.begin(0);
    if (phase.starts_with("evaluating")) job.watch.phase(phase, job.now);
    if (phase == "saving") job.watch.saving(true, job.now);
    job.busy = 0.5;
    for (int i = 0; i < 3600; ++i) {
      ++job.bytes;
      EXPECT_FALSE(job.pass(1)) << phase;
    }
    job.busy = 0;
    const double idle = job.now;
    const auto found = job.pass(3600);
    ASSERT_TRUE(found) << phase;
    EXPECT_NEAR(job.now - idle, 600, 1.5) << phase;
    EXPECT_THAT(found->text, HasSubstr(phase.substr(0, 6)));
  }
}

// A thread that computes for ever in a save writes nothing.
TEST(HangWatch, EndsASaveThatMovesNoDataForTenMinutes) {
  Job job = training(0.4);
  job.watch.saving(true, job.now);
  job.busy = 1;
  const double sign = job.now;
  const auto found = job.pass(3600);
  ASSERT_TRUE(found);
  EXPECT_NEAR(job.now - sign, 600, 1.5);
  EXPECT_EQ(found->text,
            "no process of the job has read or written data for 600 s, while saving a checkpoint");
}

// A process that has computed shortly before has worked.
TEST(HangWatch, SaysWhetherASaveHasWorked) {
  Job job = training(0.4);
  job.watch.saving(true, job.now);
  job.busy = 1;
  EXPECT_FALSE(job.pass(595));
  job.busy = 0;
  const auto found = job.pass(60);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->text, HasSubstr("has read or written data for"));
}

// During a save, an evaluation may compute without moving data.
TEST(HangWatch, LetsAnEvaluationComputeWhileASaveEnds) {
  Job job = training(0.4);
  job.watch.saving(true, job.now);
  job.watch.phase("evaluating", job.now);
  job.busy = 1;
  EXPECT_FALSE(job.pass(3600));
}

TEST(HangWatch, StepsAfterAPhaseHaveTheUsualLimit) {
  Job job = training(0.4);
  job.watch.phase("evaluating", job.now);
  EXPECT_FALSE(job.pass(100));
  job.watch.phase("", job.now);
  const double sign = job.now;
  ASSERT_TRUE(job.pass(60));
  EXPECT_NEAR(job.now - sign, 10, 0.5);
}

// On a busy machine, the first sample may be late. Then the job is idle for long enough before the process is
// known to be stopped for long enough.
TEST(HangWatch, NamesAStoppedProcessAlsoIfSamplesAreLate) {
  Job job = training(0.4);
  const double sign = job.now;
  std::optional<HangFinding> found;
  for (double now = sign; !found && now < sign + 60; now += 0.2) {
    std::optional<JobSample> sample;
    if (now >= sign + 4) sample = JobSample{.time = now, .stopped = 17};
    found = job.watch.check(now, sample);
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->stopped, 17);
  EXPECT_THAT(found->text, HasSubstr("a signal has stopped process 17"));
}

TEST(HangWatch, FindsAStoppedProcessInEveryState) {
  for (const bool begun : {false, true}) {
    Job job;
    if (begun) {
      job = training(0.4);
      job.watch.phase("evaluating", job.now);
    }
    job.stopped = 17;
    job.busy = 1;  // other ranks wait in a loop
    const double sign = job.now;
    const auto found = job.pass(60);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->stopped, 17);
    EXPECT_NEAR(job.now - sign, 10, 1.5);
  }
}

TEST(HangWatch, AContinuedProcessIsNoHang) {
  Job job = training(0.4);
  job.stopped = 17;
  EXPECT_FALSE(job.pass(8));
  job.stopped.reset();
  job.busy = 1;
  EXPECT_FALSE(job.pass(100));
}

TEST(HangWatch, AJobWhoseOutputIsNotReadWaitsForItsUser) {
  Job job = training(0.4);
  job.unread = true;
  EXPECT_FALSE(job.pass(5000));
  job.unread = false;
  EXPECT_TRUE(job.pass(20));
}

// While the supervisor itself did not run, the job may not have run, too.
TEST(HangWatch, ForgivesAPauseOfTheMachine) {
  Job job = training(0.4);
  EXPECT_FALSE(job.pass(5));
  job.now += 1000;
  EXPECT_FALSE(job.pass(4));
  EXPECT_TRUE(job.pass(10));
}

TEST(HangWatch, StepsThatWaitForServicesHaveMoreTime) {
  Job job = training(0.4, {.for_services = 600});
  const double sign = job.now;
  ASSERT_TRUE(job.pass(2000));
  EXPECT_NEAR(job.now - sign, 600, 1);
}

TEST(HangWatch, AProcessThatDoesNotExitIsFound) {
  Job job = training(0.4);
  job.watch.ended(job.now);
  const auto found = job.pass(60);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->text, HasSubstr("the run has ended, but its process remains"));
}

// A rank that hangs still watches its machine: about 10 KiB every five seconds.
TEST(Traffic, AWatchOfTheMachineIsNoWork) {
  Traffic traffic;
  HangWatch watch({.patience = 60}, 0);
  std::optional<HangFinding> found;
  std::uint64_t bytes = 1 << 20;
  double now = 0;
  while (!found && ++now < 100) {
    if (static_cast<int>(now) % 5 == 0) bytes += 10302;
    traffic.add(7, now, bytes);
    found = watch.check(now, JobSample{.time = now, .processor_seconds = 3, .bytes = traffic.total()});
  }
  ASSERT_TRUE(found);
  EXPECT_GE(now, 60);
  EXPECT_EQ(traffic.total(), 0U);
}

TEST(Traffic, CountsWhatIsReadFast) {
  Traffic traffic;
  traffic.add(7, 1, 100 << 20);  // at its first sight, a process may have read for long
  EXPECT_EQ(traffic.total(), 0U);
  traffic.add(7, 2, 101 << 20);
  EXPECT_EQ(traffic.total(), 1U << 20);
  traffic.add(8, 2, 5);  // another process
  traffic.add(7, 3, 4);  // a new process with the number of an earlier one
  traffic.add(7, 3.5, (1 << 20) + 4);
  EXPECT_EQ(traffic.total(), 2U << 20);
}

}  // namespace
}  // namespace primus::supervise
