// The device interface: memory, streams of asynchronous work, and a table of kernels. Each kind of device has
// one implementation, and code above turbo/ is independent of the kind. The CPU is built in; every other kind
// is a plug-in (device/plugin.h). turbo/devices/devices.h opens a device of any kind by name.
//
// A Device and the objects that it creates belong to one rank and share no state with other ranks, so several
// devices may exist in one process. One thread at a time allocates memory and creates streams and events. A
// stream is used by one thread at a time, but not always by the same thread. So if a library has a current
// device per thread, the implementation must set this device in every call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace primus {

class KernelTable;

// The resources of a device that a kernel gets in addition to its arguments: threads and address translation
// on a CPU, a stream handle and library handles on a GPU. Kernels of a backend cast the context to the
// derived type.
class KernelContext {
 public:
  virtual ~KernelContext() = default;
};

// A kernel as streams see it: `arguments` points to a trivially copyable struct that the stream copies when
// the kernel is enqueued (turbo/kernel_table.h has the typed interface).
using KernelFunction = void (*)(KernelContext& context, const void* arguments);

// The kind of work on a stream. Work of different streams overlaps if the device supports it.
enum class StreamKind : std::uint8_t {
  kCompute,        // the rank's kernels
  kCopy,           // transfers between host and device
  kCommunication,  // collectives
};

// Static properties of a device. Reading them does not use the device.
struct DeviceProperties {
  std::string kind;          // "cpu", "cuda", "hip": the kind, as settings name it
  int ordinal = 0;           // index within its kind
  std::string name;          // the product name: "NVIDIA H200"
  std::int64_t memory = 0;   // total bytes; 0: unknown
  bool host_memory = false;  // true if device memory is part of host memory
  bool graphs = false;       // true if Device::capture can record the work of the compute stream
};

// Bytes of a device's memory, summed over all programs that use it.
struct DeviceMemoryUse {
  std::int64_t used = 0, total = 0;
};

// The implementation that kernels of a device chose, such as "attention forward: cuDNN 9.19.0", and the
// number of calls.
struct KernelChoice {
  std::string what;
  std::int64_t calls = 0;
  bool operator==(const KernelChoice&) const = default;
};

// Marks a point in the work of a stream. Device::create_event creates an event, which may be recorded
// repeatedly.
class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // blocks the host until the stream has reached the recorded point;
                                   // rethrows errors of earlier work
};

// An ordered queue of work. All functions only enqueue, except synchronize(). Host memory in a copy must stay
// valid and unchanged until the copy is done.
class Stream {
 public:
  static constexpr std::size_t kMaxArgumentBytes = 2048;

  virtual ~Stream() = default;
  virtual void launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) = 0;
  virtual void copy_to_device(void* device, const void* host, std::int64_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::int64_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill_zero(void* device, std::int64_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  // later work of this stream runs after the event's recorded point
  virtual void synchronize() = 0;  // blocks the host until all work is done; rethrows errors of this work
  // Allows later work to be interrupted: when *stop is true, launch() and copies throw StopRequest
  // (base/system/stop_request.h). If `stop` is null, work always completes. Has an effect only on streams
  // that run work within the call. All other streams complete all enqueued work, so kernels should be short.
  virtual void stop_on(const std::atomic<bool>* /*stop*/) {}
};

// Recorded work that can be enqueued again and again (a CUDA or HIP graph).
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // Returns a text such as "cpu: 2 threads, avx512 amx_bf16".
  virtual DeviceProperties properties() const = 0;
  virtual DeviceMemoryUse memory_use() const = 0;
  // Allocates device memory, aligned to Arena::kAlignment and zeroed. Throws Error if there is not enough
  // memory.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* address) noexcept = 0;
  // Allocates host memory that this device copies asynchronously and at full speed, aligned to
  // Arena::kAlignment. Throws Error if there is not enough memory.
  virtual void* allocate_pinned(std::int64_t bytes) = 0;
  virtual void release_pinned(void* address) noexcept = 0;
  virtual std::unique_ptr<Stream> create_stream(StreamKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual const KernelTable& kernels() const = 0;
  virtual KernelContext& kernel_context() = 0;  // the context for workspace functions of kernels
  // Returns the kernel choices, in the order of the first call of each choice. Any thread may call this.
  virtual std::vector<KernelChoice> choices() const { return {}; }
  // Records the work that `work` enqueues on `stream`, instead of running it. Returns null if
  // DeviceProperties::graphs is false; the caller then runs the work itself. While recording, allocations and
  // host waits are not allowed.
  virtual std::unique_ptr<Graph> capture(Stream& /*stream*/, const std::function<void()>& /*work*/) {
    return nullptr;
  }
  // Returns true if launch() returns only after the kernel has run. Then the wall time of launch() is the
  // time of the kernel.
  virtual bool synchronous() const = 0;
};

// Owns pinned host memory; the device must outlive it.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device& device, std::int64_t bytes)
      : device_(&device), data_(device.allocate_pinned(bytes)), bytes_(bytes) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer() {
    if (device_) device_->release_pinned(data_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace primus
