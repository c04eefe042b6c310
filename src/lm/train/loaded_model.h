// Reconciles the architecture of the model that `load` names with the experiment's model settings.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

struct LoadedModel {
  ModelConfig config;
  // Sentences on differences between experiment and folder, and on the values that are used.
  std::vector<std::string> notes;
};

// Returns the architecture to train. `loaded` is the architecture in the config.json named `where`, and takes
// precedence. `ours` is the architecture that the experiment's keys describe. If a key differs, the result
// depends on the source of the key:
//   - set in the experiment or on the command line: rotary keys and max_position_embeddings are used, because
//     they stretch the context; any other key throws Error(kInvalid) at its place;
//   - set by a preset: another shape throws; other keys are ignored with a note;
//   - default value: config.json's value is used silently.
// Settings for training the model (such as MtpConfig::enabled) come from `ours`. A note names each router
// loss that the weights were trained with.
LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where);

}  // namespace primus
