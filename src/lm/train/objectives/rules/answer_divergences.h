// The divergences of answers from the reference model: the sum of ln p(current) - ln p(reference) over the
// tokens of an answer. Both models run forward. All ranks of the mesh make the same calls. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lm/data/batch.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/step/session.h"

namespace primus {

class AnswerDivergences {
 public:
  // Allocates persistent memory, so construct it in LossRule::prepare(), after that of the rule with the
  // reference.
  explicit AnswerDivergences(TrainingSession& session);

  // Makes the calls for this number of microbatches on a rank that measures memory.
  void measure(std::int64_t microbatches);
  // Returns the divergence of each answer of this data rank. `batches`: the microbatches that contain the
  // answers (pack_rollouts()). `sequence`: number of tokens of a row.
  std::vector<double> compute(std::span<const Rollout> own, std::span<const data::Batch> batches,
                              std::int64_t sequence);

 private:
  TokenLogProbs current_, reference_;
};

}  // namespace primus
