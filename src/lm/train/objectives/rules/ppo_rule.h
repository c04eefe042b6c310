// The losses of PPO with a value model, as a loss rule: a clipped policy loss, and a clipped regression of
// the value model to the returns, as TRL 1.10 computes them. Policy and value model are trained in the same
// steps (LossRule::second_model).
//
// A microbatch has rows of documents (data::Batch) with the role kAnswer: a prompt with a generated answer,
// whose last token is also an input unless the answer has the max length. `loss_mask` is 1 where the label is
// a token of the answer. Before the first step that learns from the answers, estimate() fills
// `old_log_probs`, `values`, `token_advantages` and `returns`, for which `document_values` are the scores.
//
// Divisors are the numbers of answer tokens, and of values, of the whole step over all microbatches and
// ranks. The losses are computed on the device (ppo_losses.h). The estimates are computed on the host, in
// fp64, once for each batch of answers: the host reads three numbers per token, and each return depends on
// the later ones. With context parallelism, every rank has the values of complete sequences.
#pragma once

#include <functional>
#include <span>

#include "lm/train/objectives/reference_model.h"
#include "lm/train/objectives/rules/ppo_estimates.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

class PpoRule : public LossRule {
 public:
  // Computes log-probabilities, values, advantages and returns of the answers in `batches` with the current
  // weights, and writes them into the batches. All ranks call it with the same number of batches; measuring
  // ranks make the same calls of the device. The metrics of the estimates are part of host_metrics().
  // LossRule::before_step() calls it for batches without returns.
  virtual void estimate(TrainingSession& session, std::span<data::Batch> batches) = 0;
  // Returns this rank's answers of the last estimate(), in the order of the batches, with whitened
  // advantages.
  virtual std::span<const PpoAnswer> answers() const = 0;
};

// Describes the value model: its architecture for a given policy, and how its first weights are loaded.
struct ValueModel {
  std::function<ModelConfig(const ModelConfig& policy)> config;
  std::function<void(TrainingSession& session, ModelInstance& value_model)> load;
};

// Returns the value model with the trunk of the policy: all weights are trained, also if the policy has
// adapters.
ModelConfig value_model_of(ModelConfig policy);

// Returns the function that makes the rule. Throws the errors of check_ppo(). `reference` is required if
// kl_coef is not 0 and the policy has no adapters.
MakeLossRule ppo_rule(const PpoSettings& settings, ReferenceWeights reference, ValueModel value_model);

}  // namespace primus
