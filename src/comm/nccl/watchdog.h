// Looks after the communicators of one rank while their work runs on the device, where no code of ours waits
// for it: one thread asks them every few milliseconds how far they have come, and when the job is aborted it
// ends what they have under way, so that everybody who waits for it wakes up. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/rank_state.h"

namespace primus::comm::nccl {

// What is looked after. Both are called on the watchdog's thread, never at the same time, and may not throw.
class Watched {
 public:
  virtual ~Watched() = default;
  // Notes what has begun and ended; aborts the job when something is wrong. True while work is under way.
  virtual bool poll() noexcept = 0;
  // Ends what is under way, after the job was aborted. True: it must be called again after a while.
  virtual bool end() noexcept = 0;
};

class Watchdog {
 public:
  explicit Watchdog(std::shared_ptr<RankState> state);
  ~Watchdog();  // nobody may be watched any more
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  // Once it returns, `watched` is not called again.
  void remove(Watched& watched) noexcept;
  // There is new work.
  void wake();

 private:
  void watch();

  const std::shared_ptr<RankState> state_;
  std::mutex watched_mutex_;  // held while watched are called
  std::vector<Watched*> watched_, ended_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool woken_ = false, stop_ = false;
  std::shared_ptr<void> subscription_;
  std::thread thread_;
};

}  // namespace primus::comm::nccl
