// The losses that compare texts, as a loss rule: DPO and its variants, KTO, ORPO, CPO and SimPO, and the
// Bradley-Terry loss of reward models.
//
// A microbatch has rows of documents with roles (data::Batch::document_roles). The loss of a step is the mean
// over its units, on any mesh: a unit is a pair, or with KTO a single answer. Losses -ln p are means over the
// tokens of the step. As in TRL, two computations use the documents of a single microbatch: optimal transport
// (aot) sorts the microbatch's pairs, and KTO estimates the KL divergence from the microbatch's mismatched
// answers. Therefore neither result depends on the mesh.
//
// A reward model (ModelConfig::scores) computes the score of a text at its last token. The margin of a pair
// is the value of its chosen text (data::Batch::document_values).
//
// reference_model.h says which model is the reference.
#pragma once

#include "lm/train/objectives/reference_model.h"
#include "lm/train/objectives/rules/preference_settings.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

// Throws Error(kInvalid) for invalid values, and Error(kUnsupported) for settings that Primus does not
// support.
void check_preferences(const PreferenceSettings& settings);

// Returns whether the loss reads log-probabilities of a reference model.
bool compares_with_reference(const PreferenceSettings& settings);

// Returns the function that makes the rule. Throws the errors of check_preferences(). `reference` is
// required if the loss needs a reference model and the trained model has no adapters.
MakeLossRule preference_rule(const PreferenceSettings& settings, ReferenceWeights reference = {});

}  // namespace primus
