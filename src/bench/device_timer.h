// Times calls on one device: rotates operands through memory, warms up, and makes samples long enough for the
// clock. Releases its memory at the end. Single-threaded.
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
  // The default for `rotated`: several times the L2 cache of an H100 (50 MiB). Some devices have larger
  // caches.
  static constexpr std::int64_t kRotatedBytes = std::int64_t{192} << 20;

  // Called before each measurement with the number of finished measurements.
  using Progress = std::function<void(std::int64_t done)>;

  // `seconds`: duration of each measurement; at least five samples are made. `rotated`: minimum total size of
  // the operands of consecutive calls, in bytes.
  DeviceTimer(Device& device, double seconds, std::int64_t rotated = kRotatedBytes, Progress progress = {});
  ~DeviceTimer() { release(); }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  Device& device() const { return device_; }
  Stream& stream() const { return *stream_; }

  // Throws Error(kInvalid) if the device has not enough free memory.
  Tensor empty(DType dtype, Shape shape);
  // Returns standard normal values times `scale`; each tensor has different values.
  Tensor random(DType dtype, Shape shape, float scale = 1);
  Tensor integers(const std::vector<std::int32_t>& values);
  void release();

  // Returns the number of operand sets, of `bytes` each, that calls rotate through; at most `maximum`.
  std::int64_t sets(std::int64_t bytes, std::int64_t maximum = 16) const;

  template <class Arguments>
  void run_once(const Arguments& call) {
    using turbo::launch;  // so that `launch` does not mean the namespace primus::launch
    const auto scratch = scratch_of(call);
    turbo::Context context{device_, *stream_, *scratch, meter_};
    launch(context, call);
    stream_->synchronize();
    device_.release(scratch->address());
  }

  // Calls rotate through the elements of the vector; `bytes`: size of one call's operands.
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
  // Times work that `call` enqueues on stream(). Fills in only the times.
  BenchmarkResult time_calls(const std::function<void()>& call);

  // Returns the bandwidth of a large device copy in bytes per second, reads plus writes.
  double copy_rate();

 private:
  // An arena of device memory for one call's workspace.
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

// Throws Error(kInvalid) for an invalid measuring time.
void check_seconds(double seconds);

}  // namespace primus
