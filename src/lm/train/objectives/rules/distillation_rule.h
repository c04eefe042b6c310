// The loss rule of distillation: the trained model learns the distribution of a teacher
// (turbo/distillation_loss). The teacher is a frozen model on the same ranks. Before each step, the teacher
// reads all microbatches, and the last stage keeps the inputs of its head: tokens * width values in the
// compute type for each microbatch.
#pragma once

#include <filesystem>
#include <functional>

#include "config/experiment.h"
#include "lm/model/model_config.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/objectives/reference_model.h"
#include "lm/train/step/loss_rule.h"
#include "turbo/distillation_loss/distillation_loss.h"

namespace primus {

struct DistillationSettings {
  turbo::DistillationForm form = {};     // without caps, which follow from the models
  std::function<ModelConfig()> teacher;  // returns the teacher's architecture
  LoadReference load;                    // loads the teacher's weights
  std::filesystem::path folder = {};     // of the teacher, for messages
  config::Experiment experiment = {};    // for errors at its keys
};

// Returns the settings of an experiment with stage distill. Throws Error(kInvalid) at the key of a missing
// teacher or of a wrong value.
DistillationSettings distillation_settings_of(const config::Experiment& experiment);

// Throws Error(kInvalid) if the teacher has other token ids than `tokenizer`.
void check_teacher_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer);

// Returns the function that makes the rule. The rule throws Error(kInvalid) for teachers that do not fit the
// trained model, and for meshes that it does not support.
MakeLossRule distillation_rule(const DistillationSettings& settings);

}  // namespace primus
