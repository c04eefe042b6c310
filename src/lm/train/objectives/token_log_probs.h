// Computes log-probabilities of the labels of a batch and returns them on the host of every rank, for
// objectives that need them before a step: Batch::old_log_probs when several steps use the same answers, and
// the divergence that RLOO subtracts from rewards. All ranks of the mesh make the same calls. Not
// thread-safe.
#pragma once

#include <vector>

#include "lm/data/batch.h"
#include "lm/train/objectives/held_tokens.h"
#include "lm/train/objectives/reference_model.h"

namespace primus {

class TokenLogProbs {
 public:
  // `model`: {session.trained()} or reference_of(session). Allocates persistent memory, so construct it in
  // LossRule::prepare().
  TokenLogProbs(TrainingSession& session, const ScoredModel& model);

  // Returns ln p(label) of each token, [B, S], and 0 where the batch's loss_mask is 0. Waits for the result.
  // Returns an empty vector while measuring.
  std::vector<float> compute(const data::BatchView& batch);

 private:
  TrainingSession& session_;
  HeldTokens held_;
  TokenScorer scorer_;
  Tensor losses_;  // [tokens of this rank]
  Tensor all_;     // [B * S]; absent on a single rank
};

}  // namespace primus
