// Speed of a run: time per iteration, tokens/s, model FLOP/s, MFU, fraction of time spent waiting for data,
// and remaining time.
//
// Conventions follow AMD Primus and Megatron: numbers are per device; FLOPs are model FLOPs, which exclude
// recomputation and the masked half of causal attention. Averages skip the first `log_avg_skip_iterations` of
// a process, restart every `log_avg_reset_interval`, and average rates harmonically (tokens over time).
//
// MFU is model FLOP/s divided by the device's peak for the compute type (device_peak.h). An iteration with an
// exact time that is faster than the peak raises the peak. MFU therefore never exceeds 1. MFU is empty if the
// peak is unknown. MFU is also empty for an iteration whose rate is more than kBelievable times the peak at
// the start of the run. Such a rate must be wrong and must not become the peak.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "base/terminal/terminal.h"

namespace primus {

struct ThroughputOptions {
  std::int64_t train_iters = 0;        // number of the last iteration; the ETA is the time until its end
  int world_size = 1;                  // number of devices
  double peak_flops_per_device = 0.0;  // peak of a device in FLOP/s; 0: unknown
  int avg_skip_iterations = 2;         // the setting log_avg_skip_iterations
  int avg_reset_interval = 10;         // the setting log_avg_reset_interval
};

// The work of all devices in one iteration.
struct IterationWork {
  double seconds = 0.0;            // wall time in seconds; must be above 0
  double data_wait_seconds = 0.0;  // the time within `seconds` in which the trainer waited for a batch
  double tokens = 0.0;             // number of tokens: sequence length x global batch size
  double model_flops = 0.0;        // FLOPs of the forward and backward passes of the global batch
  // False if the host may have read the start time of `seconds` too late. The sum over several iterations is
  // then correct, but a single iteration may seem faster than it was.
  bool exact = true;
};

// Rates per device; seconds_per_iteration and data_wait_share are for the complete job.
struct Speed {
  double seconds_per_iteration = 0.0;
  double tokens_per_second = 0.0;
  double flops_per_second = 0.0;
  std::optional<double> mfu;     // MFU as a fraction, 0..1
  double data_wait_share = 0.0;  // fraction of time spent waiting for data, 0..1
};

struct Throughput {
  Speed now;  // speed of the current iteration
  // Average speed since averages were last restarted; empty for the iterations that averages skip.
  std::optional<Speed> average;
  std::optional<double> eta;     // seconds until the end of iteration train_iters, including evaluations and
                                 // checkpoints
  double elapsed_seconds = 0.0;  // seconds since the first iteration of this process ended
};

class ThroughputMeter {
 public:
  static constexpr double kBelievable = 2;

  explicit ThroughputMeter(ThroughputOptions options)
      : options_(options), measured_peak_(options.peak_flops_per_device) {}

  // Adds the iteration with number `iteration` (the first is 1). `now`: the end of the iteration, in seconds
  // of the steady clock.
  Throughput update(std::int64_t iteration, const IterationWork& work, double now);
  // Returns the peak in FLOP/s per device; 0: unknown.
  double peak() const { return options_.peak_flops_per_device; }

 private:
  Speed speed(const IterationWork& work, double iterations) const;

  ThroughputOptions options_;
  double measured_peak_;  // peak before the first iteration of this process; 0: unknown
  EtaEstimator eta_;
  IterationWork window_;  // sums since averages were last restarted
  int in_window_ = 0;
  std::int64_t seen_ = 0;
  double started_ = 0.0;
};

}  // namespace primus
