// Times operators on a GPU (gpu_bench.cpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "tensor/arena.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/context.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::turbo {

class Bench {
 public:
  static constexpr std::int64_t kScratchBytes = std::int64_t{10} << 30;  // enough for attention over 32768
                                                                         // tokens

  Bench(Device& device, bool json)
      : device_(device),
        stream_(device.create_stream(StreamKind::kCompute)),
        scratch_("scratch", device.allocate(kScratchBytes), kScratchBytes),
        context_{device, *stream_, scratch_, meter_},
        json_(json) {
    if (!json_) std::printf("%-44s %10s %12s\n", "operator", "time", "rate");
  }

  // Returns standard normal values times `scale`, plus `mean`.
  Tensor random(DType dtype, Shape shape, float scale = 1, float mean = 0) {
    const Tensor wide = empty(DType::kF32, shape);
    launch(
        context_,
        RandomNormal{.out = wide, .seed = 1, .stream = ++streams_, .offset = 0, .mean = mean, .std = scale});
    if (dtype == DType::kF32) return wide;
    const Tensor tensor = empty(dtype, shape);
    launch(context_, Cast{.x = wide, .out = tensor});
    stream_->synchronize();
    device_.release(wide.data);
    return tensor;
  }
  Tensor empty(DType dtype, Shape shape) {
    Tensor tensor(nullptr, dtype, shape);
    tensor.data = device_.allocate(tensor.bytes());
    return tensor;
  }
  void release(const Tensor& tensor) { device_.release(tensor.data); }
  Tensor integers(std::int64_t n, const std::function<std::int32_t(std::int64_t)>& value) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) host[static_cast<std::size_t>(i)] = value(i);
    const Tensor tensor = empty(DType::kI32, {n});
    stream_->copy_to_device(tensor.data, host.data(), tensor.bytes());
    stream_->synchronize();
    return tensor;
  }

  // `work`: bytes or operations per call; `unit`: "GB/s" or "TFLOP/s".
  template <class Arguments>
  void run(const std::string& name, const Arguments& call, double work, const char* unit) {
    run_in_turn(name, std::vector{call}, work, unit);
  }
  // Times several calls in turn. So at the start of a call, the cache contains operands of the other calls.
  template <class Arguments>
  void run_in_turn(const std::string& name, const std::vector<Arguments>& alike, double work,
                   const char* unit) {
    const auto seconds_of = [&](int calls) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) launch(context_, alike[static_cast<std::size_t>(i) % alike.size()]);
      stream_->synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
    };
    seconds_of(2);
    const int calls = std::clamp(static_cast<int>(0.02 / seconds_of(3)), 3, 500);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) times.push_back(seconds_of(calls));
    std::sort(times.begin(), times.end());
    const double rate = work / times[2] / (std::strcmp(unit, "GB/s") == 0 ? 1e9 : 1e12);
    if (json_) {
      std::printf("{\"operator\":\"%s\",\"microseconds\":%.2f,\"rate\":%.1f,\"unit\":\"%s\"}\n", name.c_str(),
                  times[2] * 1e6, rate, unit);
    } else {
      std::printf("%-44s %7.1f us %8.1f %s\n", name.c_str(), times[2] * 1e6, rate, unit);
    }
    std::fflush(stdout);
  }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  Meter meter_;
  Context context_;
  std::uint64_t streams_ = 0;
  bool json_;
};

inline constexpr DType kHalf = DType::kBF16, kFull = DType::kF32;

// Times a short convolution and its gradients. Bytes count each row once, although neighboring rows are also
// read.
void convolution(Bench& bench, const std::string& name, const CausalConvShape& shape);
// Times operators that only move data, with the sizes of mixtures of experts (gpu_mixtures.cpp).
void mixtures(Bench& bench);

}  // namespace primus::turbo
