// The losses that compare texts, as a loss rule: DPO and its variants, KTO, ORPO, CPO and SimPO.
//
// A microbatch has rows of documents with roles (data::Batch::document_roles). The loss of a step is the mean
// over its units, on any mesh: a unit is a pair, or with KTO a single answer. Losses -ln p are means over the
// tokens of the step. As in TRL, two computations use the documents of a single microbatch: optimal transport
// (aot) sorts the microbatch's pairs, and KTO estimates the KL divergence from the microbatch's mismatched
// answers. Therefore neither result depends on the mesh.
//
// The reference model is the trained model without its adapters. If the run has no adapters, it is a frozen
// model with the name "reference", which the caller loads.
#pragma once

#include <functional>

#include "lm/train/objectives/preference_settings.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/model_instance.h"

namespace primus {

// Loads the weights of the frozen reference model. Called on every rank of the mesh.
using LoadReference = std::function<void(TrainingSession& session, ModelInstance& reference)>;

// Throws Error(kInvalid) for invalid values, and Error(kUnsupported) for settings that Primus does not
// support.
void check_preferences(const PreferenceSettings& settings);

// Returns whether the loss reads log-probabilities of a reference model.
bool compares_with_reference(const PreferenceSettings& settings);

// Returns the function that makes the rule. Throws the errors of check_preferences(). `load_reference` is
// required if the loss needs a reference model and the trained model has no adapters.
MakeLossRule preference_rule(const PreferenceSettings& settings, LoadReference load_reference = {});

}  // namespace primus
