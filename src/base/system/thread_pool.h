// A small fork-join pool for compute kernels: the caller and N - 1 workers share the tasks of one loop at a
// time.
//
// Tasks are claimed dynamically, so a slow core runs fewer of them. Task boundaries depend only on n and
// grain, not on the number of threads. A kernel may compute one partial result per task and add the partial
// results in task order. The result of such a kernel is bit-identical for any pool size. Workers spin briefly
// between loops, then sleep on a futex. The pool allocates only in its constructor.
//
// A pool belongs to one rank: only one thread at a time may call parallel_for. A loop body must not call
// parallel_for of the same pool. A process may have any number of pools.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace primus {

template <class Signature>
class FunctionRef;

// A reference to a callable, valid as long as the callable exists. Never allocates.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
           std::is_invocable_r_v<Result, Callable&, Args...>)
      FunctionRef(Callable&& callable)  // NOLINT: implicit, so that lambdas can be passed in place
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(static_cast<Args&&>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, static_cast<Args&&>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  // body(begin, end, thread_index) runs one task; thread_index in [0, size()) selects scratch buffers.
  using Body = FunctionRef<void(std::int64_t, std::int64_t, int)>;

  // `threads` includes the caller: 1 starts no worker. Throws Error(kInvalid) outside [1, kMaxThreads].
  // `spin`: how long an idle worker spins before it sleeps.
  explicit ThreadPool(int threads, std::chrono::microseconds spin = std::chrono::microseconds(50));
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int kMaxThreads = 4096;
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body once for each task [i * grain, min(n, (i + 1) * grain)), in any order, and returns when all
  // are done. A grain below 1 counts as 1. If a body throws, unclaimed tasks are dropped and the first
  // exception is rethrown.
  void parallel_for(std::int64_t n, std::int64_t grain, Body body);

  // After this call, parallel_for stops between two tasks once `stop` is set and throws StopRequest
  // (base/system/stop_request.h). Null: never stop early. Call it from the thread that calls parallel_for.
  void stop_on(const std::atomic<bool>* stop) { stop_on_ = stop; }

 private:
  struct Job {
    const Body* body = nullptr;
    std::int64_t n = 0;
    std::int64_t grain = 1;
    std::int64_t tasks = 0;
  };

  void worker_loop(int thread_index);
  void run_tasks(int thread_index);
  void stop_if_asked() const;
  void record_exception() noexcept;

  // The state of the current loop: [epoch : 16 | open : 1 | participants : 15]. Workers join the loop while
  // the gate is open. The caller closes the gate when no task is left. Then the caller waits for the workers
  // that have entered, but not for workers that still sleep.
  static constexpr std::uint32_t kParticipant = 1, kParticipants = 0x7fff, kOpen = 0x8000, kEpoch = 0x10000;
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  alignas(64) std::atomic<std::int64_t> next_task_{0};
  alignas(64) Job job_;
  const std::atomic<bool>* stop_on_ = nullptr;
  std::atomic<bool> failed_{false};
  std::exception_ptr exception_;
  std::atomic<bool> stop_{false};
  std::chrono::microseconds spin_;
  std::vector<std::thread> workers_;
};

}  // namespace primus
