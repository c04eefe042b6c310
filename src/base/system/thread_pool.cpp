#include "base/system/thread_pool.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/system/stop_request.h"
#include "base/system/threads.h"

namespace primus {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() is true or `limit` has passed; returns done().
template <class Done>
bool spin_until(std::chrono::microseconds limit, Done done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    // Reads the clock once per 16 pauses, because reading the clock takes as long as several pauses.
    for (int i = 0; i < 16; ++i) {
      relax();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

void end_workers(std::atomic<bool>& stop, std::atomic<std::uint32_t>& gate, std::uint32_t epoch,
                 std::vector<std::thread>& workers) {
  stop.store(true);
  gate.fetch_add(epoch);
  gate.notify_all();
  for (auto& worker : workers) worker.join();
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::chrono::microseconds spin) : spin_(spin) {
  if (threads < 1 || threads > kMaxThreads) {
    throw invalid("a thread pool cannot have " + std::to_string(threads) + " threads",
                  "choose between 1 and " + std::to_string(kMaxThreads));
  }
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.push_back(
          start_thread([this, i] { worker_loop(i); },
                       "computes, number " + std::to_string(i + 1) + " of " + std::to_string(threads)));
    }
  } catch (...) {
    end_workers(stop_, gate_, kEpoch, workers_);
    throw;
  }
}

ThreadPool::~ThreadPool() { end_workers(stop_, gate_, kEpoch, workers_); }

void ThreadPool::parallel_for(std::int64_t n, std::int64_t grain, Body body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t tasks = (n - 1) / grain + 1;
  if (workers_.empty() || tasks == 1) {
    for (std::int64_t begin = 0; begin < n; begin += std::min(grain, n - begin)) {
      stop_if_asked();
      body(begin, begin + std::min(grain, n - begin), 0);
    }
    return;
  }

  assert((gate_.load() & (kOpen | kParticipants)) == 0 && "parallel_for is not reentrant");
  job_ = {&body, n, grain, tasks};
  next_task_.store(0, std::memory_order_relaxed);
  // Publishes the loop's data. Workers read the data only after they have seen the open gate with this epoch.
  gate_.store((((gate_.load(std::memory_order_relaxed) & ~(kEpoch - 1)) + kEpoch) | kOpen));
  gate_.notify_all();
  run_tasks(0);

  gate_.fetch_and(~kOpen);
  const auto empty = [this] { return (gate_.load(std::memory_order_acquire) & kParticipants) == 0; };
  if (!spin_until(spin_, empty)) {
    for (auto seen = gate_.load(); (seen & kParticipants) != 0; seen = gate_.load()) gate_.wait(seen);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(exception_, nullptr));
  }
}

void ThreadPool::run_tasks(int thread_index) {
  const Job job = job_;
  for (;;) {
    const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.tasks) return;
    const std::int64_t begin = task * job.grain;
    try {
      stop_if_asked();
      (*job.body)(begin, begin + std::min(job.grain, job.n - begin), thread_index);
    } catch (...) {
      record_exception();
    }
  }
}

void ThreadPool::stop_if_asked() const {
  if (stop_on_ && stop_on_->load(std::memory_order_relaxed)) throw StopRequest();
}

void ThreadPool::record_exception() noexcept {
  if (!failed_.exchange(true)) exception_ = std::current_exception();
  next_task_.store(job_.tasks, std::memory_order_relaxed);
}

void ThreadPool::worker_loop(int thread_index) {
  std::uint32_t last_epoch = 0;
  for (;;) {
    // There is work if the gate is open and its epoch is not the epoch that this worker finished last.
    std::uint32_t seen = 0;
    const auto news = [&] {
      seen = gate_.load(std::memory_order_acquire);
      return stop_.load(std::memory_order_relaxed) ||
             ((seen & kOpen) != 0 && (seen & ~(kEpoch - 1)) != last_epoch);
    };
    if (!spin_until(spin_, news)) {
      while (!news()) gate_.wait(seen);
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!gate_.compare_exchange_strong(seen, seen + kParticipant)) continue;
    last_epoch = seen & ~(kEpoch - 1);
    run_tasks(thread_index);
    const std::uint32_t left = gate_.fetch_sub(kParticipant) - kParticipant;
    if ((left & (kOpen | kParticipants)) == 0) gate_.notify_all();
  }
}

}  // namespace primus
