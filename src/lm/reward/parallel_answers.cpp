#include "lm/reward/parallel_answers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "base/system/threads.h"

namespace primus {

std::size_t worker_count(const RewardSettings& settings) {
  if (settings.workers > 0) return static_cast<std::size_t>(settings.workers);
  return std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
}

std::vector<Reward> score_in_parallel(std::span<const ScoredAnswer> answers, std::size_t workers,
                                      const std::function<Reward(const ScoredAnswer&, std::size_t)>& score) {
  std::vector<Reward> rewards(answers.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](std::size_t worker) {
    for (std::size_t i = next++; i < answers.size(); i = next++) {
      try {
        rewards[i] = score(answers[i], worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (error == nullptr) error = std::current_exception();
        next = answers.size();
      }
    }
  };
  {
    ThreadGroup threads;
    for (std::size_t worker = 1; worker < std::min(workers, answers.size()); ++worker) {
      threads.start([&work, worker] { work(worker); }, "scores answers");
    }
    work(0);
  }
  if (error != nullptr) std::rethrow_exception(error);
  return rewards;
}

}  // namespace primus
