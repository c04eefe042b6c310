// Reconciles the architecture of the model that `load` names with the experiment's model settings.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

struct LoadedModel {
  ModelConfig config;
  std::vector<std::string> notes;  // sentences: how experiment and folder differ, and whose value is used
};

// Returns the architecture to train. `loaded` is the architecture in the config.json named `where`, and it
// decides. `ours` is the architecture that the experiment's keys describe. If a key differs, its source
// decides:
//   - set in the experiment or on the command line: rotary keys and max_position_embeddings are used, because
//     they stretch the context; any other key throws Error(kInvalid) at its place;
//   - set by a preset: shapes throw; other keys are ignored with a note;
//   - default value: config.json's value is used silently.
// Settings of how a model is trained (such as MtpConfig::enabled) come from `ours`. A note names each loss of
// routers that the weights were trained with.
LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where);

}  // namespace primus
