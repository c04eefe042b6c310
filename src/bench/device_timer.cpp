#include "bench/device_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {

using Clock = std::chrono::steady_clock;

void check_seconds(double seconds) {
  if (!(seconds > 0) || seconds > 3600)
    throw invalid("the time for a measurement must be above 0 and at most 3600 seconds");
}

DeviceTimer::DeviceTimer(Device& device, double seconds, std::int64_t rotated, Progress progress)
    : device_(device),
      seconds_(seconds),
      rotated_(rotated),
      progress_(std::move(progress)),
      stream_(device.create_stream(StreamKind::kCompute)) {
  check_seconds(seconds);
}

Tensor DeviceTimer::empty(DType dtype, Shape shape) {
  Tensor tensor(nullptr, dtype, shape);
  const DeviceMemoryUse use = device_.memory_use();
  if (use.total > 0 && tensor.bytes() > use.total - use.used) {
    throw invalid(
        fmt::format("the operands do not fit: they need {:.1f} MiB more, and the device has {:.1f} MiB "
                    "left",
                    static_cast<double>(tensor.bytes()) / (1 << 20),
                    static_cast<double>(use.total - use.used) / (1 << 20)),
        "choose smaller sizes");
  }
  tensor.data = device_.allocate(tensor.bytes());
  memory_.push_back(tensor.data);
  return tensor;
}

Tensor DeviceTimer::random(DType dtype, Shape shape, float scale) {
  const Tensor wide = empty(DType::kF32, shape);
  run_once(turbo::RandomNormal{
      .out = wide, .seed = 1, .stream = ++streams_, .offset = 0, .mean = 0, .std = scale});
  if (dtype == DType::kF32) return wide;
  const Tensor tensor = empty(dtype, shape);
  run_once(turbo::Cast{.x = wide, .out = tensor});
  device_.release(wide.data);
  std::erase(memory_, wide.data);
  return tensor;
}

Tensor DeviceTimer::integers(const std::vector<std::int32_t>& values) {
  const Tensor tensor = empty(DType::kI32, {static_cast<std::int64_t>(values.size())});
  stream_->copy_to_device(tensor.data, values.data(), tensor.bytes());
  stream_->synchronize();
  return tensor;
}

void DeviceTimer::release() {
  for (void* const address : memory_) device_.release(address);
  memory_.clear();
}

std::int64_t DeviceTimer::sets(std::int64_t bytes, std::int64_t maximum) const {
  return std::clamp(rotated_ / std::max<std::int64_t>(bytes, 1) + 1, std::int64_t{1}, maximum);
}

double DeviceTimer::copy_rate() {
  const Tensor from = empty(DType::kF32, {rotated_ / 4}), to = empty(DType::kF32, {rotated_ / 4});
  // writes the memory, because unwritten memory may map to a single page
  run_once(turbo::Fill{.out = from, .value = 1});
  const BenchmarkResult result =
      time_calls([&] { stream_->copy_on_device(to.data, from.data, from.bytes()); });
  release();
  return 2.0 * static_cast<double>(from.bytes()) / result.timing.fastest;
}

BenchmarkResult DeviceTimer::time_calls(const std::function<void()>& call) {
  if (progress_) progress_(measured_++);
  const auto seconds_of = [&](std::int64_t calls) {
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) call();
    stream_->synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(calls);
  };
  seconds_of(1);  // loads kernels and selects algorithms
  // A sample takes at least 10 ms, so that the host's launch overhead is a small share of the sample.
  const double one = std::max(seconds_of(2), 1e-9);
  BenchmarkResult result;
  result.calls = std::clamp(static_cast<std::int64_t>(0.01 / one), std::int64_t{1}, std::int64_t{1000});
  std::vector<double> times;
  const auto begin = Clock::now();
  while (times.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds_)
    times.push_back(std::max(seconds_of(result.calls), 1e-12));
  result.timing = summarize(std::move(times));
  return result;
}

}  // namespace primus
