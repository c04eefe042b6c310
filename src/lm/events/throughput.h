// Speed of a run: time per iteration, tokens/s, model FLOP/s, MFU, fraction of time spent waiting for data,
// and remaining time.
//
// Conventions follow AMD Primus and Megatron: numbers are per device; FLOPs are model FLOPs (recomputation is
// not counted, causal attention counts half). Averages skip the first `log_avg_skip_iterations` of a process,
// restart every `log_avg_reset_interval`, and average rates harmonically (tokens over time).
//
// MFU is model FLOP/s divided by the device's peak for the compute type (device_peak.h). A faster iteration
// raises the peak if its time is exact, so MFU never exceeds 1. MFU is empty without a known peak. MFU is
// also empty for an iteration more than kBelievable times as fast as the peak at the start of the run: the
// FLOPs or the time of such an iteration must be wrong, so its rate must not become the peak.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/terminal/terminal.h"

namespace primus {

struct ThroughputOptions {
  std::int64_t train_iters = 0;        // last iteration; the ETA is the time until this iteration
  int world_size = 1;                  // number of devices
  double peak_flops_per_device = 0.0;  // peak of a device in FLOP/s; 0: unknown
  int avg_skip_iterations = 2;         // the setting log_avg_skip_iterations
  int avg_reset_interval = 10;         // the setting log_avg_reset_interval
};

// One iteration of the complete job.
struct IterationWork {
  double seconds = 0.0;            // wall time in seconds, above 0
  double data_wait_seconds = 0.0;  // part of `seconds` in which the trainer waited for a batch
  double tokens = 0.0;             // number of tokens: sequence length x global batch size
  double model_flops = 0.0;        // FLOPs of the forward and backward passes of the global batch
  // False if `seconds` is the time between two clock reads on the host, of which the first may have been
  // late. Sums over several iterations are then correct, but a single iteration may seem faster than its real
  // speed.
  bool exact = true;
};

// Per device, except seconds_per_iteration and data_wait_share.
struct Speed {
  double seconds_per_iteration = 0.0;
  double tokens_per_second = 0.0;
  double flops_per_second = 0.0;
  std::optional<double> mfu;     // fraction, 0..1
  double data_wait_share = 0.0;  // fraction, 0..1
};

struct Throughput {
  Speed now;  // speed of this iteration
  // Average since the last restart of averages; empty while iterations are skipped.
  std::optional<Speed> average;
  std::optional<double> eta;     // seconds until train_iters, including evaluations and checkpoints
  double elapsed_seconds = 0.0;  // seconds since the end of this process's first iteration
};

class ThroughputMeter {
 public:
  static constexpr double kBelievable = 2;

  explicit ThroughputMeter(ThroughputOptions options)
      : options_(options), measured_peak_(options.peak_flops_per_device) {}

  // Adds iteration `iteration` (counted from 1), which ended at `now` in seconds of the steady clock.
  Throughput update(std::int64_t iteration, const IterationWork& work, double now);
  // FLOP/s per device; 0: unknown.
  double peak() const { return options_.peak_flops_per_device; }

 private:
  Speed speed(const IterationWork& work, double iterations) const;

  ThroughputOptions options_;
  double measured_peak_;  // peak before the first iteration; 0: unknown
  EtaEstimator eta_;
  IterationWork window_;  // sums since the averages restarted
  int in_window_ = 0;
  std::int64_t seen_ = 0;
  double started_ = 0.0;
};

}  // namespace primus
