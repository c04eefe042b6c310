// Log-probabilities of the labels of a batch on the host of every rank, for objectives that need them before
// a step: Batch::old_log_probs when several steps use the same answers, and the divergence that RLOO
// subtracts from rewards. All ranks of the mesh make the same calls. Not thread-safe.
#pragma once

#include <vector>

#include "lm/data/batch.h"
#include "lm/train/objectives/reference_model.h"
#include "lm/train/objectives/rules/held_tokens.h"

namespace primus {

// Copies values of tokens, one for each token of a microbatch, from the ranks that computed them to the host
// of every rank with the same sequences.
class TokenCollector {
 public:
  // `step`: the settings of the batches; `model`: the model that computes the values. By default, those of
  // the session's steps. All arguments must outlive this object. Allocates persistent memory, so construct it
  // in LossRule::prepare().
  TokenCollector(engine::Rank& rank, const LanguageModel& model, const StepSettings& step);
  explicit TokenCollector(TrainingSession& session);

  // Returns the values [B, S] of all tokens. `held`: fp32 [tokens of this rank], read only on ranks with the
  // last part of the model. Waits for the result. Returns an empty vector while measuring.
  std::vector<float> collect(const Tensor& held);

 private:
  engine::Rank& rank_;
  const LanguageModel& model_;
  const std::int64_t tokens_;  // B * S
  HeldTokens held_;
  Tensor all_;  // [B * S]; absent if this rank has all values
};

class TokenLogProbs {
 public:
  // `model`: {session.trained()} or reference_of(session). Allocates persistent memory, so construct it in
  // LossRule::prepare().
  TokenLogProbs(TrainingSession& session, const ScoredModel& model);

  // Returns ln p(label) of each token, [B, S], and 0 where the batch's loss_mask is 0. Waits for the result.
  // Returns an empty vector while measuring.
  std::vector<float> compute(const data::BatchView& batch);

 private:
  TokenScorer scorer_;
  Tensor losses_;  // [tokens of this rank]
  TokenCollector collector_;
};

}  // namespace primus
