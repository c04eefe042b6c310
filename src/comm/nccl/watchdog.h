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

// A watched object. Its functions must not throw.
class Watched {
 public:
  virtual ~Watched() = default;
  // Records started and finished work; aborts the job on a failure. Returns true while work is pending. Runs
  // on the watchdog's thread.
  virtual bool poll() noexcept = 0;
  // After the job was aborted: unblocks work of the device that waits for other ranks, without waiting
  // itself. Returns true if it must be called again later. Runs on the watchdog's thread.
  virtual bool release() noexcept = 0;
  // After the job was aborted: ends pending work. It is called once, on another thread than the other
  // functions. It may wait for the device, because release() of all objects is called meanwhile.
  virtual void end() noexcept = 0;
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
  // The work of the thread that ends objects, one after the other, after the job was aborted.
  void end_all() noexcept;
  void stop_ender();

  const std::shared_ptr<RankState> state_;
  std::mutex watched_mutex_;  // held while poll() and release() are called; guards the fields up to `ender_`
  std::vector<Watched*> watched_, ended_;
  Watched* ending_ = nullptr;  // the object whose end() runs
  std::condition_variable ended_one_;
  std::condition_variable end_now_;
  bool ends_ = false;  // whether objects are to be ended
  bool ender_stops_ = false;
  std::thread ender_;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  bool woken_ = false, stop_ = false;
  std::shared_ptr<void> subscription_;
  std::thread thread_;
};

}  // namespace primus::comm::nccl
