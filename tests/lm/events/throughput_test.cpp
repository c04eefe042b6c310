#include "lm/events/throughput.h"

#include <gtest/gtest.h>

namespace primus {
namespace {

TEST(ThroughputMeter, FiguresArePerDevice) {
  ThroughputMeter meter({.train_iters = 10, .world_size = 4, .peak_flops_per_device = 1e12});
  const Throughput t =
      meter.update(1, {.seconds = 2.0, .data_wait_seconds = 0.5, .tokens = 4096, .model_flops = 4e12}, 5.0);
  EXPECT_DOUBLE_EQ(t.now.seconds_per_iteration, 2.0);
  EXPECT_DOUBLE_EQ(t.now.tokens_per_second, 512.0);
  EXPECT_DOUBLE_EQ(t.now.flops_per_second, 0.5e12);
  EXPECT_DOUBLE_EQ(t.now.mfu.value(), 0.5);
  EXPECT_DOUBLE_EQ(t.now.data_wait_share, 0.25);
  EXPECT_FALSE(t.average.has_value());
  EXPECT_FALSE(t.eta.has_value());
}

TEST(ThroughputMeter, AnIterationFasterThanThePeakRaisesIt) {
  ThroughputMeter meter({.world_size = 2, .peak_flops_per_device = 100});
  EXPECT_DOUBLE_EQ(meter.update(1, {.seconds = 1, .tokens = 1, .model_flops = 100}, 0).now.mfu.value(), 0.5);
  EXPECT_DOUBLE_EQ(meter.update(2, {.seconds = 1, .tokens = 1, .model_flops = 400}, 1).now.mfu.value(), 1.0);
  EXPECT_EQ(meter.peak(), 200);
  EXPECT_DOUBLE_EQ(meter.update(3, {.seconds = 1, .tokens = 1, .model_flops = 200}, 2).now.mfu.value(), 0.5);
  // If the measured time is inexact and may be too short, it does not raise the peak.
  const IterationWork hasty{.seconds = 0.1, .tokens = 1, .model_flops = 400, .exact = false};
  EXPECT_DOUBLE_EQ(meter.update(4, hasty, 2.1).now.mfu.value(), 1.0);
  EXPECT_EQ(meter.peak(), 200);
  // Without a known peak, no MFU is reported.
  ThroughputMeter unknown({.peak_flops_per_device = 0});
  EXPECT_FALSE(unknown.update(1, {.seconds = 1, .tokens = 1, .model_flops = 400}, 0).now.mfu);
  EXPECT_EQ(unknown.peak(), 0);
}

TEST(ThroughputMeter, ImpossiblyFastIterationsAreIgnored) {
  ThroughputMeter meter({.peak_flops_per_device = 100});
  EXPECT_FALSE(meter.update(1, {.seconds = 1, .tokens = 1, .model_flops = 201}, 0).now.mfu);
  EXPECT_EQ(meter.peak(), 100);
  // The peak may rise to at most twice its first value, in any number of steps.
  meter.update(2, {.seconds = 1, .tokens = 1, .model_flops = 190}, 1);
  EXPECT_EQ(meter.peak(), 190);
  EXPECT_FALSE(meter.update(3, {.seconds = 1, .tokens = 1, .model_flops = 300}, 2).now.mfu);
  EXPECT_EQ(meter.peak(), 190);
}

TEST(ThroughputMeter, WithoutAPeakThereIsNoMfu) {
  ThroughputMeter meter({});
  EXPECT_FALSE(meter.update(1, {.seconds = 1.0, .tokens = 1, .model_flops = 1}, 0.0).now.mfu.has_value());
}

TEST(ThroughputMeter, AveragesSkipAndRestart) {
  ThroughputMeter meter({.avg_skip_iterations = 2, .avg_reset_interval = 3});
  const double seconds[] = {50, 50, 1, 2, 3, 4};
  std::vector<Throughput> t;
  double now = 0;
  for (int i = 0; i < 6; ++i) {
    now += seconds[i];
    // After a resume, averages leave out the first iterations of the process, whatever their iteration
    // numbers.
    t.push_back(meter.update(101 + i, {.seconds = seconds[i], .tokens = 12, .model_flops = 12}, now));
  }
  EXPECT_FALSE(t[0].average.has_value());
  EXPECT_FALSE(t[1].average.has_value());
  EXPECT_DOUBLE_EQ(t[2].average->seconds_per_iteration, 1.0);
  EXPECT_DOUBLE_EQ(t[3].average->seconds_per_iteration, 1.5);
  EXPECT_DOUBLE_EQ(t[4].average->seconds_per_iteration, 2.0);
  // 6 tokens/s is the harmonic mean of 12, 6 and 4 tokens/s.
  EXPECT_DOUBLE_EQ(t[4].average->tokens_per_second, 6.0);
  EXPECT_DOUBLE_EQ(t[5].average->seconds_per_iteration, 4.0);
}

TEST(ThroughputMeter, TheEtaIncludesTimeBetweenIterations) {
  ThroughputMeter meter({.train_iters = 100});
  std::optional<double> eta;
  double now = 0.0;
  for (int i = 1; i <= 50; ++i) {
    now += 1.0;  // the iteration
    eta = meter.update(i, {.seconds = 1.0, .tokens = 1, .model_flops = 1}, now).eta;
    now += 0.5;  // evaluation, checkpoint
  }
  EXPECT_NEAR(eta.value(), 50 * 1.5, 1e-9);
}

}  // namespace
}  // namespace primus
