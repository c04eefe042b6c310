// Policy-gradient losses, as a loss rule: GRPO and its variants, and RLOO, as TRL computes them.
//
// A microbatch has rows of documents (data::Batch). A document with the role kAnswer is a prompt with a
// generated answer: `loss_mask` is 1 where the label is a learned token of the answer, `document_values` is
// the advantage, `sampled_log_probs` are the sampler's values, and `old_log_probs` are the training pass's
// values under the weights that generated the answers. If `old_log_probs` is empty, the current weights
// generated the answers, so that ratios are 1. Documents with other roles are padding. An answer whose mask
// is 0 everywhere (a truncated answer) has no gradient, but counts in means over answers.
//
// Divisors are numbers of answers and tokens of the whole step, over all microbatches and ranks. Therefore
// the loss does not depend on the mesh. Only bnpo divides by the number of tokens of a microbatch, as in TRL;
// its loss is the mean over the microbatches.
#pragma once

#include "lm/train/objectives/reference_model.h"
#include "lm/train/objectives/rules/policy_settings.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

// Throws Error(kInvalid) for invalid values, and for settings that have no effect.
void check_policy(const PolicySettings& settings);

// Returns whether the objective reads log-probabilities of a reference model, in the loss or (RLOO) in the
// rewards.
bool compares_with_reference(const PolicySettings& settings);

// Returns the model whose logits are divided by `temperature`. Use it for the training session, and save the
// original model with checkpoints. A sampler that reads the session's weights then samples at temperature 1.
// Throws Error(kUnsupported) for a temperature other than 1 if the model caps its logits.
ModelConfig with_temperature(ModelConfig model, double temperature);

// Returns the function that makes the rule. Throws the errors of check_policy(). `reference` is required
// if the objective needs a reference model and the trained model has no adapters.
MakeLossRule policy_rule(const PolicySettings& settings, ReferenceWeights reference = {});

}  // namespace primus
