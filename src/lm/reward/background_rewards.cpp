#include "lm/reward/background_rewards.h"

#include <utility>

#include "base/check.h"

namespace primus {

BackgroundRewards::BackgroundRewards(std::vector<Functions> lanes) : lanes_(std::move(lanes)) {
  PRIMUS_CHECK("BackgroundRewards", !lanes_.empty());
}

BackgroundRewards::~BackgroundRewards() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  for (const Functions& functions : lanes_)
    for (const std::unique_ptr<RewardFunction>& function : functions) function->interrupt();
  changed_.notify_all();
  threads_.join();
}

void BackgroundRewards::start(std::int64_t number, Answers answers, std::vector<std::size_t> functions) {
  const std::size_t lane = static_cast<std::size_t>(number) % lanes_.size();
  auto job = std::make_unique<Job>();
  job->answers = std::move(answers);
  job->functions = std::move(functions);
  bool is_new = false;
  {
    const std::scoped_lock lock(mutex_);
    PRIMUS_CHECK("BackgroundRewards::start", jobs_.emplace(number, std::move(job)).second);
    is_new = runs_.insert(lane).second;
  }
  if (is_new) threads_.start([this, lane] { work(lane); }, "scores answers in the background");
  changed_.notify_all();
}

bool BackgroundRewards::wait(std::int64_t number, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  const Job& job = *jobs_.at(number);
  changed_.wait_for(lock, time, [&] { return job.ended; });
  if (job.error) std::rethrow_exception(job.error);
  return job.ended;
}

std::map<std::size_t, BackgroundRewards::Scored> BackgroundRewards::arrived(std::int64_t number) const {
  const std::scoped_lock lock(mutex_);
  return jobs_.at(number)->done;
}

double BackgroundRewards::seconds(std::int64_t number) const {
  const std::scoped_lock lock(mutex_);
  return jobs_.at(number)->seconds;
}

void BackgroundRewards::forget(std::int64_t number) {
  const std::scoped_lock lock(mutex_);
  PRIMUS_CHECK("BackgroundRewards::forget", jobs_.at(number)->ended);
  jobs_.erase(number);
}

BackgroundRewards::Job* BackgroundRewards::next_of(std::size_t lane) {
  for (const auto& [number, job] : jobs_)
    if (static_cast<std::size_t>(number) % lanes_.size() == lane && !job->started) return job.get();
  return nullptr;
}

void BackgroundRewards::work(std::size_t lane) {
  for (;;) {
    Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || (job = next_of(lane)) != nullptr; });
      if (closing_) return;
      job->started = true;
    }
    score(lanes_[lane], *job);
  }
}

void BackgroundRewards::score(Functions& functions, Job& job) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point began = Clock::now();
  std::exception_ptr error;
  for (const std::size_t index : job.functions) {
    Scored scored;
    try {
      scored.rewards = functions[index]->score(job.answers.answers);
      scored.retries = functions[index]->take_retries().value_or(RewardRetries());
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    if (closing_) return;
    if (error) break;
    job.done.emplace(index, std::move(scored));
  }
  const std::scoped_lock lock(mutex_);
  job.error = error;
  job.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  job.ended = true;
  changed_.notify_all();
}

}  // namespace primus
