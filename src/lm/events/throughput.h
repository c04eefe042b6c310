// How fast a run is: time per iteration, tokens/s, model FLOP/s, MFU, the share of time spent waiting for
// data, and how long still.
//
// Conventions, all Primus's and Megatron's: figures are per device; FLOPs are model FLOPs (recomputation not
// counted, causal attention halved); averages leave out the first `log_avg_skip_iterations` of a process,
// restart every `log_avg_reset_interval`, and average rates harmonically (tokens over time). MFU is model
// FLOP/s over the device's peak for the compute type (device_peak.h), which an iteration that is faster
// raises, if its time is exact: it is never above 1. Without a known peak there is none, and none for an
// iteration that is more than kBelievable times as fast as the peak that the run began with: then the FLOPs
// or the time are counted wrongly, and that must not become a peak.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/terminal/terminal.h"

namespace primus {

struct ThroughputOptions {
  std::int64_t train_iters = 0;        // the ETA's target
  int world_size = 1;                  // devices
  double peak_flops_per_device = 0.0;  // FLOP/s; 0: unknown
  int avg_skip_iterations = 2;         // log_avg_skip_iterations
  int avg_reset_interval = 10;         // log_avg_reset_interval
};

// One iteration of the whole job.
struct IterationWork {
  double seconds = 0.0;            // wall time, > 0
  double data_wait_seconds = 0.0;  // of which the trainer stood still for a batch
  double tokens = 0.0;             // sequence length x global batch size
  double model_flops = 0.0;        // forward and backward of the global batch
  // False: `seconds` lie between two looks of a host that may have been late for the first one. Over several
  // iterations they are right; a single one may seem faster than it was.
  bool exact = true;
};

// Per device, except where it says otherwise.
struct Speed {
  double seconds_per_iteration = 0.0;
  double tokens_per_second = 0.0;
  double flops_per_second = 0.0;
  std::optional<double> mfu;     // 0..1
  double data_wait_share = 0.0;  // 0..1
};

struct Throughput {
  Speed now;                     // this iteration
  std::optional<Speed> average;  // since the last restart of the averages; none while they are skipped
  std::optional<double> eta;     // seconds until train_iters, evaluation and checkpoints included
  double elapsed_seconds = 0.0;  // since the first iteration of this process ended
};

class ThroughputMeter {
 public:
  static constexpr double kBelievable = 2;

  explicit ThroughputMeter(ThroughputOptions options)
      : options_(options), measured_peak_(options.peak_flops_per_device) {}

  // After iteration `iteration` (counted from 1) ended at `now`, seconds of the steady clock.
  Throughput update(std::int64_t iteration, const IterationWork& work, double now);
  // FLOP/s per device; 0: unknown.
  double peak() const { return options_.peak_flops_per_device; }

 private:
  Speed speed(const IterationWork& work, double iterations) const;

  ThroughputOptions options_;
  double measured_peak_;  // before any iteration; 0: unknown
  EtaEstimator eta_;
  IterationWork window_;  // sums since the averages restarted
  int in_window_ = 0;
  std::int64_t seen_ = 0;
  double started_ = 0.0;
};

}  // namespace primus
