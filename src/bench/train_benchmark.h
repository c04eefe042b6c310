// How fast training steps of an experiment run on this machine, and where the time goes. Random tokens stand
// for data, nothing is written. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "config/experiment.h"
#include "engine/rank.h"
#include "lm/model/family.h"
#include "turbo/devices/tracing_device.h"

namespace primus {

struct TrainBenchmarkOptions {
  std::int64_t steps = 10;
  std::int64_t warmup = 2;  // steps before, not counted
  // Where set, so many further steps are recorded behind the timed ones.
  std::shared_ptr<turbo::TraceRecorder> trace = {};
  std::int64_t traced_steps = 1;
  // Seconds for each product and attention of the model, which are timed alone once the steps are over and
  // their memory is free again; 0: not measured.
  double ceiling_seconds = 0;
  // Called after each step, warm-up included: steps done, steps in all.
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct TrainBenchmarkReport {
  std::string device;
  std::string compute_type;  // "fp32", "bf16"
  std::int64_t parameters = 0, tokens_per_step = 0, steps = 0;
  // Seconds per step: median, fastest, slowest.
  double seconds = 0, fastest = 0, slowest = 0;
  std::vector<double> step_seconds;  // of each, in their order
  // At the median step.
  double tokens_per_second = 0;
  double model_flops_per_second = 0;  // training_flops: recomputation not counted
  double gemm_peak = 0;      // FLOP/s of large products, the best measured before and after the steps
  double share_of_peak = 0;  // model_flops_per_second / gemm_peak
  struct Line {
    std::string kernel;
    std::int64_t calls = 0;         // per step
    double seconds = 0, share = 0;  // per step; of the step's time
    double flops_per_second = 0;    // 0 for kernels without matrix work
  };
  std::vector<Line> kernels;   // by time, largest first; empty on devices whose kernels run asynchronously
  double outside_kernels = 0;  // share of the step's time
  engine::MemoryPlan memory;   // what is reserved, bytes
  std::int64_t device_used_bytes = 0;    // of the device's memory, by all programs on it, after the steps
  std::int64_t peak_resident_bytes = 0;  // of the whole process, as the system counts it
  double loss = 0;                       // of the last step
  // Median time that the host took to enqueue a step's first microbatch on an idle device; 0 on devices that
  // work inside the call.
  double enqueue_seconds = 0;
  std::int64_t replayed_steps = 0;  // as graphs (lm/train/step_graphs.h), of the timed ones and those after
  // With TrainBenchmarkOptions::ceiling_seconds: what a step would take if it were nothing but its matrix
  // products and its attention, each as fast as it is alone on this device in this run; its recomputation is
  // not counted.
  struct Ceiling {
    double product_seconds = 0, attention_seconds = 0;
    double model_flops_per_second = 0;  // of a step of so many seconds
    double share = 0;                   // what the timed steps reach of it
  };
  std::optional<Ceiling> ceiling = {};
};

TrainBenchmarkReport benchmark_training(const config::Experiment& experiment, const FamilyRegistry& families,
                                        const TrainBenchmarkOptions& options);

// The same for tables, plots and baselines: one case, a step.
BenchmarkReport to_report(const TrainBenchmarkReport& report);

std::string to_json(const TrainBenchmarkReport& report);
std::string to_text(const TrainBenchmarkReport& report);

}  // namespace primus
