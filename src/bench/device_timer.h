// Times calls on one device: operands in rotated memory, warm-up, samples long enough for the clock. It gives
// back the memory it took at the end. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus {

class DeviceTimer {
 public:
  // More than twice the largest caches.
  static constexpr std::int64_t kRotatedBytes = std::int64_t{192} << 20;

  // Called before each measurement with the number of those that are done.
  using Progress = std::function<void(std::int64_t done)>;

  // `seconds`: for each measurement; at least five samples are taken. `rotated`: operands of consecutive
  // calls take at least so much memory together.
  DeviceTimer(Device& device, double seconds, std::int64_t rotated = kRotatedBytes, Progress progress = {});
  ~DeviceTimer() { release(); }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  Device& device() const { return device_; }
  Stream& stream() const { return *stream_; }

  // Throws Error(kInvalid) where the device has not so much memory left.
  Tensor empty(DType dtype, Shape shape);
  // Standard normal numbers times `scale`, other ones in every tensor.
  Tensor random(DType dtype, Shape shape, float scale = 1);
  Tensor integers(const std::vector<std::int32_t>& values);
  void release();

  // How many sets of operands of `bytes` calls take turns with, at most `most`.
  std::int64_t sets(std::int64_t bytes, std::int64_t most = 16) const;

  template <class Arguments>
  void run_once(const Arguments& call) {
    using turbo::launch;  // not the namespace primus::launch, where a file knows it
    const auto scratch = scratch_of(call);
    turbo::Context context{device_, *stream_, *scratch, meter_};
    launch(context, call);
    stream_->synchronize();
    device_.release(scratch->address());
  }

  // Calls take turns; `bytes` of one of them.
  template <class Arguments>
  BenchmarkResult time(const std::string& name, const std::vector<Arguments>& calls, double bytes) {
    using turbo::launch;
    const auto scratch = scratch_of(calls.front());
    turbo::Context context{device_, *stream_, *scratch, meter_};
    std::size_t next = 0;
    BenchmarkResult result = time_calls([&] { launch(context, calls[next++ % calls.size()]); });
    device_.release(scratch->address());
    result.name = name;
    result.flops = calls.front().flops();
    result.bytes = bytes;
    return result;
  }
  // The same for work that `call` enqueues on stream(); only times are filled in.
  BenchmarkResult time_calls(const std::function<void()>& call);

  // Bytes per second, read and written, of a large copy on the device.
  double copy_rate();

 private:
  // Device memory for one call's workspace, as an arena.
  class Scratch : public Arena {
   public:
    Scratch(void* address, std::int64_t bytes) : Arena("scratch", address, bytes), address_(address) {}
    void* address() const { return address_; }

   private:
    void* address_;
  };
  template <class Arguments>
  std::unique_ptr<Scratch> scratch_of(const Arguments& call) {
    using turbo::launch;
    Arena measuring("scratch");
    turbo::Context plan{device_, *stream_, measuring, meter_};
    launch(plan, call);
    const std::int64_t bytes = std::max(measuring.high_water(), Arena::kAlignment);
    return std::make_unique<Scratch>(device_.allocate(bytes), bytes);
  }

  Device& device_;
  double seconds_;
  std::int64_t rotated_, measured_ = 0;
  Progress progress_;
  std::unique_ptr<Stream> stream_;
  turbo::Meter meter_;
  std::vector<void*> memory_;
  std::uint64_t streams_ = 0;
};

// Throws Error(kInvalid) for a time that no measurement takes.
void check_seconds(double seconds);

}  // namespace primus
