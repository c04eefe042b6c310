// The CPU's streams and events: one that runs everything at once, and one with a worker thread of its own.
// Made by CpuDevice, and by the guard device of the tests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/system/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace primus::cpu {

// Counts how often it has been recorded (enqueued) and how far the streams have come. As in CUDA, waiting
// means the latest record() before the wait; an event that was never recorded holds nobody up. An event of a
// stream that has failed tells everybody who waits for it.
class CpuEvent final : public Event {
 public:
  void synchronize() override;
  bool reached() const;  // the latest record() has been reached; does not wait

 private:
  friend class InlineStream;
  friend class WorkerStream;
  // Shared with the streams' pending work, which may outlive the event.
  struct State {
    std::mutex mutex;
    std::condition_variable reached_changed;
    std::int64_t recorded = 0, reached = 0;
    std::exception_ptr failure;  // of the stream, at the last point that was reached
    std::int64_t record();
    std::int64_t latest();
    void reach(std::int64_t count, const std::exception_ptr& of_stream = nullptr);
    void wait_for(std::int64_t count);  // rethrows the failure
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Work happens inside the call that asks for it; what it throws leaves that call. Large copies and fills use
// the pool.
class InlineStream : public Stream {
 public:
  explicit InlineStream(CpuContext& context) : context_(context) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) override;
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override;
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override;
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override;
  void fill_zero(void* device, std::int64_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override {}
  void stop_on(const std::atomic<bool>* stop) override { context_.pool().stop_on(stop); }

 private:
  CpuContext& context_;
};

// The same for transfers within the host's memory: the thread that asks for one makes it, alone and at its
// own priority, and its data stays in that core's cache. Several threads may ask at once: a pool of one
// thread runs loops where they are called, and has no state.
struct OneThread {
  ThreadPool pool{1};
  CpuContext context{pool, 0};
};
class CallerStream final : private OneThread, public InlineStream {
 public:
  CallerStream() : InlineStream(context) {}
};

// A first-in-first-out queue and a thread that empties it. After a failure the work that is already queued,
// or comes before synchronize() has reported it, is dropped; events pass, so that nobody waits for ever, and
// carry the failure to streams that wait for them.
class WorkerStream final : public Stream {
 public:
  // `threads` for kernels; `address_offset` as in CpuContext, applied to device addresses in copies too.
  WorkerStream(int threads, std::ptrdiff_t address_offset);
  ~WorkerStream() override;  // finishes the queue; a failure nobody asked for is lost

  void launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) override;
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override;
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override;
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override;
  void fill_zero(void* device, std::int64_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;

 private:
  struct Task {
    std::function<void()> run;
    bool always;  // events: also after a failure
  };
  void enqueue(std::function<void()> run, bool always = false);
  void work();
  char* translate(const void* device_address) const;

  std::ptrdiff_t offset_;
  ThreadPool pool_;
  CpuContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace primus::cpu
