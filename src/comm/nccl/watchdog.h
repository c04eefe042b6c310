// Watches the communicators of one rank while their work runs on the device, because the host does not wait
// for this work. One thread polls their progress every few milliseconds. When the job is aborted, it ends
// their pending work, so that every waiting thread wakes up. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/rank_state.h"

namespace primus::comm::nccl {

// A watched object. Both functions run on the watchdog's thread, never concurrently, and must not throw.
class Watched {
 public:
  virtual ~Watched() = default;
  // Records started and finished work; aborts the job on a failure. Returns true while work is pending.
  virtual bool poll() noexcept = 0;
  // Ends pending work after the job was aborted. Returns true if end() must be called again later.
  virtual bool end() noexcept = 0;
};

class Watchdog {
 public:
  explicit Watchdog(std::shared_ptr<RankState> state);
  ~Watchdog();  // all watched objects must have been removed
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  // After remove() has returned, `watched` is not called again.
  void remove(Watched& watched) noexcept;
  // Wakes the watchdog's thread, because there is new work.
  void wake();

 private:
  void watch();

  const std::shared_ptr<RankState> state_;
  std::mutex watched_mutex_;  // held while watched objects are called
  std::vector<Watched*> watched_, ended_;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  bool woken_ = false, stop_ = false;
  std::shared_ptr<void> subscription_;
  std::thread thread_;
};

}  // namespace primus::comm::nccl
