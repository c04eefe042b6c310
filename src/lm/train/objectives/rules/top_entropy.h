// The tokens of a step with the highest entropies, as TRL's `top_entropy_quantile` chooses them: the tokens
// whose entropy is at least a quantile of the entropies of all learned tokens. The quantile covers the whole
// step, with all its microbatches and data ranks, so the choice does not depend on the mesh, except where
// entropies differ by rounding. TRL computes a quantile for each microbatch of all ranks. All ranks of the
// mesh make the same calls. Not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lm/data/batch.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the smallest value that is chosen if the share `top` of `values` is chosen: the quantile 1 - top,
// interpolated as torch.quantile() interpolates it, in fp32. Values that are NaN are ignored. Without values,
// the result is infinity.
float top_threshold(std::vector<float> values, double top);

class TopEntropy {
 public:
  // `top`: share of the tokens to choose, from 0 to 1.
  explicit TopEntropy(double top) : top_(top) {}

  // Allocates persistent memory, so call it in LossRule::prepare(), and only if choose() is called.
  void prepare(TrainingSession& session);
  // Returns for each microbatch of this rank a table [B, S]: 1 for the chosen tokens, else 0. Computes the
  // entropies with a forward pass of the trained model for each microbatch, and waits for the results.
  // `masks`: for each batch, [B, S], other than 0 for learned tokens. While measuring, `batches` and the
  // result are empty.
  std::vector<std::vector<float>> choose(std::span<const data::Batch> batches,
                                         std::span<const std::vector<float>> masks);

 private:
  // Returns the entropies of all learned tokens of the step. `tables`: for each microbatch of this rank,
  // [B, S], with kNotLearned for other tokens.
  std::vector<float> gather(std::span<const std::vector<float>> tables);

  double top_;
  TrainingSession* session_ = nullptr;
  std::optional<TokenScorer> scorer_;
  std::optional<TokenCollector> collector_;
  Tensor entropies_;  // [tokens of this rank] fp32, of one microbatch
  Tensor all_;        // [data ranks, microbatches * B * S] fp32; absent with one data rank
};

}  // namespace primus
