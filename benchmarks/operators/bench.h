// Shared by the operator benchmarks: a CPU device, tensors with ordinary values, and the best time of many
// calls.
#pragma once

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::turbo {

struct BenchOptions {
  int threads = cpu::available_cores();
  double seconds = 0.2;   // seconds per measurement
  bool cpu_time = false;  // CPU time / threads: steadier under other load, but excludes waiting
  IsaLevel isa = best_isa_level();
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        device_(options.threads, cpu_kernel_table(options.isa)),
        stream_(device_.create_stream(StreamKind::kCompute)),
        scratch_("scratch", device_.allocate(kScratchBytes), kScratchBytes),
        context_{device_, *stream_, scratch_, meter_} {}

  std::string description() const { return device_.description(); }
  ThreadPool& pool() { return device_.pool(); }
  Stream& stream() { return *stream_; }

  // Returns a tensor without denormals and infinities. It is valid until release().
  Tensor tensor(DType dtype, Shape shape) {
    Tensor out(nullptr, dtype, shape);
    out.data = allocate(out.bytes());
    if (dtype == DType::kF32) {
      launch(context_, RandomNormal{.out = out, .seed = 1, .stream = 0, .offset = 0, .mean = 0, .std = 1});
    } else if (dtype == DType::kBF16) {
      launch(context_, Cast{.x = tensor(DType::kF32, shape), .out = out});
    }
    return out;
  }
  void* allocate(std::int64_t bytes) {
    blocks_.push_back(device_.allocate(bytes));
    return blocks_.back();
  }
  void release(void* block) {
    std::erase(blocks_, block);
    device_.release(block);
  }
  void release() {
    for (void* block : blocks_) device_.release(block);
    blocks_.clear();
  }

  template <class Arguments>
  void run(const Arguments& arguments) {
    launch(context_, arguments);
  }

  // Returns the seconds of the fastest of many calls. Slower calls may have been disturbed by other
  // processes.
  double best_time(const std::function<void()>& work) {
    work();
    double best = 1e30;
    const double end = now() + options_.seconds;
    for (double start = now(); start < end; start = now()) {
      work();
      best = std::min(best, now() - start);
    }
    return best;
  }

 private:
  static constexpr std::int64_t kScratchBytes = std::int64_t{1} << 30;

  double now() const {
    timespec time{};
    clock_gettime(options_.cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    const double seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    return options_.cpu_time ? seconds / options_.threads : seconds;
  }

  BenchOptions options_;
  cpu::CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  Meter meter_;
  Context context_;
  std::vector<void*> blocks_;
};

}  // namespace primus::turbo
