// Streams and events of the CPU: a stream that runs work at once, and a stream with a worker thread.
// CpuDevice and the guard device of the tests create them.
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

// Counts the enqueued record() calls, and the record() calls that streams have reached. As in CUDA, a wait
// refers to the latest record() before the wait. An event that was never recorded does not block. After a
// failure of the stream, the failure is thrown in every thread and passed to every stream that waits for its
// events.
class CpuEvent final : public Event {
 public:
  void synchronize() override;
  bool reached() const;  // whether the latest record() has been reached; does not wait

 private:
  friend class InlineStream;
  friend class WorkerStream;
  // State that is shared with pending work of streams, which may outlive the event.
  struct State {
    std::mutex mutex;
    std::condition_variable reached_changed;
    std::int64_t recorded = 0, reached = 0;
    std::exception_ptr failure;  // the failure of the stream at the point that was reached last
    std::int64_t record();
    std::int64_t latest();
    void reach(std::int64_t count, const std::exception_ptr& of_stream = nullptr);
    void wait_for(std::int64_t count);  // rethrows the failure
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Runs work inside the call that requests the work. This call also throws the errors of the work. Large
// copies and fills use the pool.
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

// An InlineStream for transfers within host memory. The calling thread does the transfers on one core with
// its own priority, so that the data stays in the cache of this core. Several threads may use it
// concurrently, because a pool of one thread runs loops in the caller and has no state.
struct OneThread {
  ThreadPool pool{1};
  CpuContext context{pool, 0};
};
class CallerStream final : private OneThread, public InlineStream {
 public:
  CallerStream() : InlineStream(context) {}
};

// A first-in-first-out queue with a thread that runs it. After a failure, the stream drops queued and new
// work until synchronize() has reported the failure. Events are still marked as reached, so no waiter blocks
// forever. Events pass the failure to the streams that wait for them.
class WorkerStream final : public Stream {
 public:
  // `threads` is the number of threads for kernels. `address_offset` is as in CpuContext; copies also add it
  // to device addresses.
  WorkerStream(int threads, std::ptrdiff_t address_offset);
  ~WorkerStream() override;  // finishes the queue; an unreported failure is lost

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
    bool always;  // true for events: this work runs even after a failure
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
