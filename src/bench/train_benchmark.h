// Measures the speed of an experiment's training steps on this machine, and how much time each kernel takes.
// Uses random tokens as data and writes no files. Single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "config/experiment.h"
#include "engine/runtime/rank.h"
#include "lm/model/family.h"
#include "turbo/devices/tracing_device.h"

namespace primus {

struct TrainBenchmarkOptions {
  std::int64_t steps = 10;
  std::int64_t warmup = 2;  // untimed steps before the timed ones
  // If set, records `traced_steps` further steps after the timed ones.
  std::shared_ptr<turbo::TraceRecorder> trace = {};
  std::int64_t traced_steps = 1;
  // Measuring time, in seconds, of each matrix product and attention shape of the model; 0: not measured.
  // These are timed separately, after the steps have freed their memory.
  double ceiling_seconds = 0;
  // Called after each step, including warm-up, with finished and total steps.
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct TrainBenchmarkReport {
  std::string device;
  std::string compute_type;  // "fp32", "bf16"
  std::int64_t parameters = 0, tokens_per_step = 0, steps = 0;
  // Seconds per step: median, fastest, slowest.
  double seconds = 0, fastest = 0, slowest = 0;
  std::vector<double> step_seconds;  // seconds of each step, in order
  // Tokens per second at the median step time.
  double tokens_per_second = 0;
  double model_flops_per_second = 0;  // computed from training_flops, which excludes recomputation
  double gemm_peak = 0;      // FLOP/s of large products: maximum of the rates before and after the steps
  double share_of_peak = 0;  // model_flops_per_second / gemm_peak
  struct Line {
    std::string kernel;
    std::int64_t calls = 0;         // calls per step
    double seconds = 0, share = 0;  // seconds: time per step; share: fraction of the step's time
    double flops_per_second = 0;    // 0 for kernels without matrix work
  };
  std::vector<Line> kernels;             // sorted by time, largest first; empty if kernels run asynchronously
  double outside_kernels = 0;            // fraction of the step's time in which no kernel runs
  engine::MemoryPlan memory;             // reserved memory, bytes
  std::int64_t device_used_bytes = 0;    // device memory used by all processes after the steps
  std::int64_t peak_resident_bytes = 0;  // peak of this process, as reported by the system
  double loss = 0;                       // loss of the last step
  // Median host time to enqueue the first microbatch of a step on an idle device; 0 on devices that compute
  // synchronously.
  double enqueue_seconds = 0;
  std::int64_t replayed_steps = 0;  // timed and later steps that ran as graphs (lm/train/step/step_graphs.h)
  // With TrainBenchmarkOptions::ceiling_seconds: the time of a step that only computes matrix products,
  // attention and delta rules, without recomputation. Uses the speeds that this run measured for each of them
  // separately (composed_time.h).
  struct Ceiling {
    double product_seconds = 0, attention_seconds = 0, delta_rule_seconds = 0;
    double model_flops_per_second = 0;  // FLOP/s of a step that takes the sum of these times
    double share = 0;                   // share of the ceiling that the timed steps reach
  };
  std::optional<Ceiling> ceiling = {};
};

TrainBenchmarkReport benchmark_training(const config::Experiment& experiment, const FamilyRegistry& families,
                                        const TrainBenchmarkOptions& options);

// Converts the result to a report with one case, a step, for tables, plots and baselines.
BenchmarkReport to_report(const TrainBenchmarkReport& report);

std::string to_json(const TrainBenchmarkReport& report);
std::string to_text(const TrainBenchmarkReport& report);

}  // namespace primus
