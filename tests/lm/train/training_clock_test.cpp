#include "lm/train/training_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lm/data/repeated_dataset.h"
#include "lm/train/job_ranks.h"

namespace primus {
namespace {

struct Simulated {
  double ended = 0;  // when the last step ended
  std::int64_t steps = 0;
  std::vector<double> positions = {};
  ClockState state = {};
};

// Simulates steps of seconds_of(step) seconds, until the clock declares a step the last one or `maximum`
// steps are done.
Simulated simulate(TrainingClock& clock, double now, const std::function<double(std::int64_t)>& seconds_of,
                   double at_end = 0, std::int64_t first = 0, std::int64_t maximum = 100000) {
  Simulated run{.steps = first};
  clock.start(now);
  while (run.steps < maximum) {
    now += seconds_of(run.steps);
    const TrainingClock::Turn turn =
        TrainingClock::decode(TrainingClock::encode(clock.turn(run.steps, now, at_end)));
    clock.take(turn);
    run.positions.push_back(turn.position);
    ++run.steps;
    if (turn.last) break;
  }
  run.ended = now;
  run.state = clock.state();
  return run;
}

void expect_rising(const std::vector<double>& positions) {
  for (std::size_t i = 1; i < positions.size(); ++i) EXPECT_GE(positions[i], positions[i - 1]) << i;
}

TEST(TrainingClock, EndsWithTheNearestStep) {
  TrainingClock clock({.total = 60}, {.planned = 60, .data_steps = 90});
  const Simulated run = simulate(clock, 1000, [](std::int64_t) { return 0.7; });
  EXPECT_NEAR(run.ended - 1000, 60, 0.35);
  EXPECT_TRUE(run.state.finished);
  EXPECT_EQ(clock.total(), run.steps);
  expect_rising(run.positions);
  // The last position is within one step of the schedule's end.
  EXPECT_GT(run.positions.back(), 60 * (1 - 0.7 / 60) - 1e-9);
}

// If the machine gets three times faster or slower after the first steps, the number of steps changes, not
// the time.
TEST(TrainingClock, AChangedSpeedChangesTheStepsAndNotTheTime) {
  for (const double factor : {1.0 / 3, 3.0}) {
    TrainingClock clock({.total = 120}, {.planned = 120, .data_steps = 181});
    const Simulated run = simulate(clock, 5, [&](std::int64_t step) { return step < 20 ? 1.0 : factor; });
    EXPECT_NEAR(run.ended - 5, 120, std::max(factor, 1.0)) << factor;
    EXPECT_NEAR(static_cast<double>(run.steps), 20 + 100 / factor, 1) << factor;
    expect_rising(run.positions);
    EXPECT_GT(run.positions.back(), 120 - 2 * factor) << factor;
  }
}

TEST(TrainingClock, TheLastEvaluationIsPartOfTheTime) {
  TrainingClock clock({.total = 60}, {.planned = 60, .data_steps = 90});
  EXPECT_NEAR(simulate(
                  clock, 0, [](std::int64_t) { return 1.0; }, 10)
                  .ended,
              50, 0.5);
}

TEST(TrainingClock, WarmUpHasItsSteps) {
  TrainingClock clock({.total = 100, .warmup_steps = 10}, {.planned = 50, .data_steps = 76});
  const Simulated run = simulate(clock, 0, [](std::int64_t) { return 1.0; });
  for (int i = 0; i <= 10; ++i) EXPECT_EQ(run.positions[static_cast<std::size_t>(i)], i);
  // After the warm-up, the schedule is spread over the remaining time.
  const double warm = 11;  // seconds
  for (const int i : {11, 40, 90}) {
    EXPECT_NEAR(run.positions[static_cast<std::size_t>(i)], 10 + 40 * (i + 1 - warm) / (100 - warm), 1e-9)
        << i;
  }
}

TEST(TrainingClock, SchedulesOfStepsFollowSteps) {
  TrainingClock clock({.total = 10, .by_steps = true}, {.planned = 5, .data_steps = 8});
  const Simulated run = simulate(clock, 0, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(run.positions[7], 7);
}

// A run that was stopped resumes with its remaining time, even if the clock of the machine differs.
TEST(TrainingClock, ResumesItsTime) {
  const auto second = [](std::int64_t) { return 1.0; };
  TrainingClock whole({.total = 100, .warmup_steps = 5}, {.planned = 100, .data_steps = 151});
  const Simulated undisturbed = simulate(whole, 0, second);
  TrainingClock first({.total = 100, .warmup_steps = 5}, {.planned = 100, .data_steps = 151});
  const Simulated before = simulate(first, 0, second, 0, 0, 40);
  EXPECT_FALSE(before.state.finished);
  TrainingClock next(first.options(), before.state);
  const Simulated after = simulate(next, 777, second, 0, 40);
  EXPECT_EQ(after.steps, undisturbed.steps);
  for (std::size_t i = 0; i < after.positions.size(); ++i)
    EXPECT_NEAR(after.positions[i], undisturbed.positions[i + 40], 1e-9);
}

TEST(TrainingClock, AtLeastOneStepIsTrained) {
  TrainingClock clock({.total = 1}, {.planned = 1, .data_steps = 2});
  EXPECT_EQ(simulate(clock, 0, [](std::int64_t) { return 30.0; }).steps, 1);
}

TEST(TrainingClock, AllRanksMakeTheSameDecisions) {
  const TrainingClock::Turn turn{
      .position = 1.0 / 3, .total = 12345678901, .last = true, .seconds = 0.1 + 0.2, .warm_seconds = 1e-300};
  const TrainingClock::Turn read = TrainingClock::decode(TrainingClock::encode(turn));
  EXPECT_EQ(read.position, turn.position);
  EXPECT_EQ(read.total, turn.total);
  EXPECT_EQ(read.last, turn.last);
  EXPECT_EQ(read.seconds, turn.seconds);
  EXPECT_EQ(read.warm_seconds, turn.warm_seconds);
}

TEST(RankPatience, FollowsTheLongestStep) {
  RankPatience patience;
  EXPECT_EQ(patience.after_step(1), std::chrono::seconds(10));
  EXPECT_EQ(patience.after_step(20), std::chrono::seconds(60));
  // After a long step, short steps do not reduce the patience, because the next step may be long again.
  EXPECT_EQ(patience.after_step(1), std::chrono::seconds(60));
}

class Numbered final : public data::Dataset {
 public:
  int64_t size() const override { return 3; }
  int64_t seq_length() const override { return 1; }
  std::string description() const override { return "numbered"; }
  void sample(int64_t index, std::span<int32_t> tokens, std::span<float>) const override {
    tokens[0] = static_cast<int32_t>(index);
  }
};

TEST(RepeatedDataset, RestartsAtItsEnd) {
  const auto repeated = data::make_repeated(std::make_unique<Numbered>());
  std::vector<int32_t> tokens(2), seen;
  std::vector<float> mask(1);
  for (int i = 0; i < 7; ++i) {
    repeated->sample(i, tokens, mask);
    seen.push_back(tokens[0]);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2, 0, 1, 2, 0));
  EXPECT_GT(repeated->size(), int64_t{1} << 40);
  EXPECT_EQ(data::make_repeated(nullptr), nullptr);
}

}  // namespace
}  // namespace primus
