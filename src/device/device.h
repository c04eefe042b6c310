// The device contract: memory, streams of asynchronous work, and a table of kernels. One implementation per
// kind of device (device/cpu today); nothing above turbo/ knows which one it is talking to.
//
// A Device and what it creates belong to one rank, and are used from that rank's thread; nothing here is
// shared between ranks, so several devices may live in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

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

// Marks a point in a stream's work. Created by Device::create_event; may be recorded again and again.
class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // the host waits until the recorded point has been reached
};

// An ordered queue of work. Everything here only enqueues, except synchronize(). Host memory named in a copy
// must stay valid and untouched until the copy is over.
class Stream {
 public:
  static constexpr std::size_t kMaxArgumentBytes = 1024;

  virtual ~Stream() = default;
  virtual void launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) = 0;
  virtual void copy_to_device(void* device, const void* host, std::int64_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::int64_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill_zero(void* device, std::int64_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  // later work of this stream runs after the event's recorded point
  virtual void synchronize() = 0;       // the host waits; rethrows what a kernel or copy threw
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // "cpu: 2 threads, avx512 amx_bf16"
  // Device memory, aligned to Arena::kAlignment and zeroed. Throws Error(kIo) when there is none left.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* address) noexcept = 0;
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual const KernelTable& kernels() const = 0;
  virtual KernelContext& kernel_context() = 0;  // to ask kernels for their workspace sizes
  // True when launch() returns only after the kernel has run: then wall time around it is the kernel's time.
  virtual bool synchronous() const = 0;
};

}  // namespace primus
