#include "lm/reward/stoppable_score.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/system/threads.h"

namespace primus {
namespace {

// Interrupts a function when a flag is set. A signal handler can only set a flag, so a thread polls it.
class Watch {
 public:
  Watch(RewardFunction& function, const std::atomic<bool>& stop) : function_(function), stop_(stop) {
    thread_.start([this] { watch(); }, "waits for a request to stop");
  }
  ~Watch() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void watch() {
    constexpr std::chrono::milliseconds kPoll(50);
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (stop_.load(std::memory_order_relaxed)) return function_.interrupt();
      changed_.wait_for(lock, kPoll);
    }
  }

  RewardFunction& function_;
  const std::atomic<bool>& stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  ThreadGroup thread_;
};

}  // namespace

std::vector<Reward> stoppable_score(RewardFunction& function, std::span<const ScoredAnswer> answers,
                                    const std::atomic<bool>* stop) {
  if (stop == nullptr) return function.score(answers);
  const Watch watch(function, *stop);
  return function.score(answers);
}

}  // namespace primus
