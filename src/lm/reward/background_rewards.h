// Scores batches of answers in background threads, while the caller generates further answers or trains.
//
// Each lane has its own thread and its own reward functions (and therefore its own programs). Batch n is
// scored in lane n % lanes, and a lane scores its batches in ascending order, so the calls of a lane do not
// depend on time. Thread-safety: one thread at a time calls the public functions.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/system/threads.h"
#include "lm/reward/reward.h"

namespace primus {

class BackgroundRewards {
 public:
  using Functions = std::vector<std::unique_ptr<RewardFunction>>;

  // The answers of a batch with the data that they point to.
  struct Answers {
    std::vector<ScoredAnswer> answers;
    std::vector<nlohmann::json> records;
    std::vector<Reward> episodes;

    Answers() = default;
    Answers(Answers&&) = default;  // moving a vector does not move its elements
    Answers& operator=(Answers&&) = default;
    Answers(const Answers&) = delete;
    Answers& operator=(const Answers&) = delete;
    ~Answers() = default;
  };
  // The results of one function.
  struct Scored {
    std::vector<Reward> rewards;  // in the order of the answers
    RewardRetries retries = {};
  };

  // `lanes`: the functions of each lane, at least one lane. All lanes have the same functions.
  explicit BackgroundRewards(std::vector<Functions> lanes);
  // Interrupts functions that are running, and drops their results.
  ~BackgroundRewards();
  BackgroundRewards(const BackgroundRewards&) = delete;
  BackgroundRewards& operator=(const BackgroundRewards&) = delete;

  // Begins to score a batch with these functions, one after the other. `number`: a new number.
  void start(std::int64_t number, Answers answers, std::vector<std::size_t> functions);
  // Waits until all functions have scored the batch, or until `time` has passed. Returns whether the results
  // are complete. Throws the error of a function that threw.
  bool wait(std::int64_t number, std::chrono::milliseconds time);
  // Returns the results that have arrived, by function.
  std::map<std::size_t, Scored> arrived(std::int64_t number) const;
  // Returns for how many seconds the functions of the batch have run.
  double seconds(std::int64_t number) const;
  // Forgets a batch whose results are complete.
  void forget(std::int64_t number);

 private:
  struct Job {
    Answers answers;
    std::vector<std::size_t> functions;
    std::map<std::size_t, Scored> done;
    bool started = false, ended = false;
    std::exception_ptr error;
    double seconds = 0;
  };

  void work(std::size_t lane);
  // Scores a batch. Called without the mutex.
  void score(Functions& functions, Job& job);
  // Returns the first batch of a lane that has not been started; null if there is none.
  Job* next_of(std::size_t lane);

  std::vector<Functions> lanes_;
  mutable std::mutex mutex_;  // guards the members below, apart from the answers of jobs
  std::condition_variable changed_;
  std::map<std::int64_t, std::unique_ptr<Job>> jobs_;
  std::set<std::size_t> runs_;  // the lanes whose threads were started
  bool closing_ = false;
  ThreadGroup threads_;
};

}  // namespace primus
