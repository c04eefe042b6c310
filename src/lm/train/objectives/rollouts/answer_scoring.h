// Scores generated answers: calls the reward functions of a run on the host, and its reward models on the
// devices. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lm/reward/background_rewards.h"
#include "lm/reward/reward.h"
#include "lm/train/objectives/rollouts/answer_table.h"
#include "lm/train/objectives/rollouts/missing_rewards.h"
#include "lm/train/objectives/rollouts/reward_models.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/rollout_rule.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/session.h"

namespace primus {

class AnswerScoring {
 public:
  // `source` must outlive this object. connect() must follow when the source is complete.
  AnswerScoring(const RolloutSource& source, std::vector<RewardModel> models)
      : source_(source), models_(std::move(models)) {}

  void connect();
  RewardModels& models() { return models_; }
  const RewardModels& models() const { return models_; }
  // Returns the distinct names of the functions, for metrics.
  const std::vector<std::string>& names() const { return names_; }

  void begin_step() { retries_.assign(source_.rewards.size(), 0); }
  // Scores the answers own[i] for each i in `rows`. If `tells` is set, this rank calls the functions, writes
  // the results to rewards[function][i], and adds the reasons for missing rewards to `missing`. All ranks
  // call it together. If this rank is asked to stop, it interrupts the functions, and answers lack rewards;
  // the caller then calls AnswerGenerator::leave_if_asked().
  void score(TrainingSession& session, std::span<const Rollout> own, std::span<const std::size_t> rows,
             bool tells, MissingRewards& missing, std::vector<std::vector<Reward>>& rewards);
  // Returns the answers own[i] for each i in `rows` as functions read them. The result does not point to
  // `own`.
  BackgroundRewards::Answers texts_of(std::span<const Rollout> own, std::span<const std::size_t> rows) const;
  // Like score(), for functions that other threads have called: takes their results, by function, from
  // `scored`, whose rewards are in the order of `own`. Runs only the reward models.
  void finish(TrainingSession& session, std::span<const Rollout> own, std::span<const std::size_t> rows,
              bool tells, std::span<const std::optional<BackgroundRewards::Scored>> scored,
              MissingRewards& missing, std::vector<std::vector<Reward>>& rewards);
  // Returns the number of repeated attempts of a function since begin_step().
  std::int64_t retries(std::size_t function) const { return retries_[function]; }
  // Warns once about each reason for which a function could not score the first such answer of a step. The
  // rank of this answer writes the warning, because only this rank has the reason. `numbers`: the answers of
  // this data rank, which are `own`, and whose rewards are `rewards` if this rank calls the functions
  // (`tells`).
  void warn_of_failures(std::int64_t step, AnswerTable& table, std::span<const std::int64_t> numbers,
                        bool tells, std::span<const Rollout> own,
                        std::span<const std::vector<Reward>> rewards, MissingRewards& missing) const;
  // Adds the metrics of functions that repeat attempts: the sum over all data ranks.
  void add_retries(AnswerTable& table, std::vector<std::pair<std::string, double>>& metrics) const;
  // Returns the answers to the first prompt, for people who watch the run.
  std::vector<GeneratedAnswer> examples(std::int64_t step, std::span<const Rollout> own,
                                        std::span<const std::vector<Reward>> rewards) const;

 private:
  void count_retries(std::size_t function, const RewardRetries& retries);
  // Runs the reward model of a function, and stores its results.
  void score_model(TrainingSession& session, std::size_t function, std::span<const Rollout> own,
                   std::span<const std::size_t> rows, const BackgroundRewards::Answers& texts, bool tells,
                   MissingRewards& missing, std::vector<std::vector<Reward>>& rewards);
  // Stores the results of a function for the answers in `rows`.
  void store(std::size_t function, std::span<const std::size_t> rows, std::vector<Reward> scored,
             MissingRewards& missing, std::vector<std::vector<Reward>>& rewards) const;

  const RolloutSource& source_;
  RewardModels models_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> retries_;
  std::set<std::string> retried_;  // the reasons of which it has warned, with their functions
};

}  // namespace primus
