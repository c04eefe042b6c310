// The device contract: memory, streams of asynchronous work, and a table of kernels. One implementation per
// kind of device; nothing above turbo/ knows which one it is talking to. The CPU is built in, every other
// kind arrives as a plug-in (device/plugin.h), and turbo/devices/devices.h opens any of them by name.
//
// A Device and what it creates belong to one rank; nothing here is shared between ranks, so several devices
// may live in one process. Memory is allocated, and streams and events are created, by one thread at a time.
// A stream is used by one thread at a time, not always the same one: an implementation whose library has a
// current device for each thread makes its own current in every call.
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

// What a kernel gets from its device besides its arguments: threads and address translation on a CPU, a
// stream handle and library handles on a GPU. Kernels of a backend know the derived type.
class KernelContext {
 public:
  virtual ~KernelContext() = default;
};

// A kernel as the streams see it: `arguments` points to a trivially copyable struct that the stream copies
// when the kernel is enqueued (see turbo/kernel_table.h for the typed face of this).
using KernelFunction = void (*)(KernelContext& context, const void* arguments);

// What a stream carries. Work of different streams overlaps where the device can do so.
enum class StreamKind : std::uint8_t {
  kCompute,        // the rank's kernels
  kCopy,           // transfers between host and device
  kCommunication,  // collectives
};

// What a device is. All of it is known without using the device.
struct DeviceProperties {
  std::string kind;          // "cpu", "cuda", "hip": the name that settings choose it by
  int ordinal = 0;           // which one of its kind
  std::string name;          // the product: "NVIDIA H200"
  std::int64_t memory = 0;   // bytes in all; 0: not known
  bool host_memory = false;  // device memory is taken from the host's
  bool graphs = false;       // Device::capture records work of the compute stream
};

// Bytes of a device's memory, all programs on it together.
struct DeviceMemoryUse {
  std::int64_t used = 0, total = 0;
};

// What kernels of a device did where they had a choice: "attention forward: cuDNN 9.19.0", and how many
// calls.
struct KernelChoice {
  std::string what;
  std::int64_t calls = 0;
  bool operator==(const KernelChoice&) const = default;
};

// Marks a point in a stream's work. Created by Device::create_event; may be recorded again and again.
class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // the host waits for that point; rethrows what work before it threw
};

// An ordered queue of work. Everything here only enqueues, except synchronize(). Host memory named in a copy
// must stay valid and untouched until the copy is over.
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
  virtual void synchronize() = 0;       // the host waits; rethrows what a kernel or copy threw
  // Work that is asked for from here on may be left half-way once `stop` is set: launch() and copies then
  // throw StopRequest (base/system/stop_request.h). Null: it is done in full. For streams that work within
  // the call; others do all that was enqueued, so their kernels should be short.
  virtual void stop_on(const std::atomic<bool>* /*stop*/) {}
};

// Work that was recorded once and can be repeated with one call (a CUDA or HIP graph).
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // "cpu: 2 threads, avx512 amx_bf16"
  virtual DeviceProperties properties() const = 0;
  virtual DeviceMemoryUse memory_use() const = 0;
  // Device memory, aligned to Arena::kAlignment and zeroed. Throws Error(kIo) when there is none left.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* address) noexcept = 0;
  // Host memory that copies of this device reach at full speed and behind the host's back, aligned to
  // Arena::kAlignment. Throws Error(kIo) when there is none left.
  virtual void* allocate_pinned(std::int64_t bytes) = 0;
  virtual void release_pinned(void* address) noexcept = 0;
  virtual std::unique_ptr<Stream> create_stream(StreamKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual const KernelTable& kernels() const = 0;
  virtual KernelContext& kernel_context() = 0;  // to ask kernels for their workspace sizes
  // In the order in which each was first made. Any thread may ask.
  virtual std::vector<KernelChoice> choices() const { return {}; }
  // Records what `work` enqueues on `stream`, instead of running it. Null where DeviceProperties::graphs is
  // false; run the work itself then. While recording, nothing may be allocated and the host may not wait.
  virtual std::unique_ptr<Graph> capture(Stream& /*stream*/, const std::function<void()>& /*work*/) {
    return nullptr;
  }
  // True when launch() returns only after the kernel has run: then wall time around it is the kernel's time.
  virtual bool synchronous() const = 0;
};

// Pinned host memory for as long as it lives; the device must outlive it.
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
