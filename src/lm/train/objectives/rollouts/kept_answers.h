// The answers of one data rank that several consecutive steps learn from (num_iterations above 1).
//
// The first of these steps learns from answers of the current weights. Its forward pass computes the
// log-probability of each token, and this class keeps them as old log-probabilities for the later steps, so
// no further pass is needed. Checkpoints between these steps contain the answers.
//
// All ranks of the mesh make the same calls. Not thread-safe.
#pragma once

#include <span>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

class KeptAnswers {
 public:
  struct Place {
    RolloutRows rows;
    std::int64_t answers = 1;  // number of answers of a step on all data ranks
    std::int64_t columns = 1;  // number of results of an answer: results() below
    // For each row of this data rank, the number of its answer within the step, ascending.
    std::vector<std::int64_t> numbers;
    bool writes = true;      // whether this rank writes the answers of its data rank into checkpoints
    bool estimates = false;  // whether answers have PPO's estimates (Rollout::values)
  };

  // Allocates persistent memory, so construct it in LossRule::prepare().
  KeptAnswers(TrainingSession& session, Place place);

  // Keeps new answers, in the order of the rows. `filled`: the number of microbatches that contain answers.
  // If the answers have no old log-probabilities, record() and answers() add them.
  void keep(std::vector<Rollout> answers, std::int64_t filled);
  // In LossRule::weigh() of every step: keeps the losses of the first step after keep().
  void record(const TokenLosses& tokens);
  // After the first step: returns the answers with old log-probabilities. Empty if there are none. While
  // measuring, makes the same calls of the device and returns nothing.
  std::span<const Rollout> answers();

  // Returns the tensors of the answers for a checkpoint. `results` [answers, columns]: values of all answers
  // of the step, which are the same on all ranks. The tensors are copies.
  std::vector<TensorSource> state(std::span<const double> results);
  // Reads the answers of a checkpoint. Returns the results of all answers; empty if the checkpoint has no
  // answers, or answers of other extents. Throws Error(kInvalid) for tensors with impossible values.
  std::vector<double> restore(const CheckpointReader& checkpoint);

 private:
  // Completes the old log-probabilities of answers_.
  void collect();
  std::int64_t length() const { return place_.rows.sequence + 1; }

  TrainingSession& session_;
  Place place_;
  std::vector<Rollout> answers_;
  Tensor losses_;  // [microbatches, tokens of this rank]: -ln p(label) in the first step
  TokenCollector collector_;
  std::int64_t filled_ = 0;
  bool records_ = false;  // whether the step is the first one after keep()
};

}  // namespace primus
