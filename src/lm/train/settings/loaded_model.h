// Reconciles the architecture of the model that `load` names with the experiment's model settings.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

struct LoadedModel {
  ModelConfig config;
  // Sentences about differences between the experiment and the folder, and about which values are used.
  std::vector<std::string> notes;
};

// Returns the architecture to train. `loaded` is the architecture in the config.json named `where`, and takes
// precedence. `ours` is the architecture that the experiment describes. If a key has different values in
// both, the result depends on where the experiment's value was set:
//   - in the experiment file or on the command line: rotary keys and max_position_embeddings are used,
//     because they extend the context; for any other key, throws Error(kInvalid) at its location;
//   - in a preset: throws if the key determines tensor shapes; other keys are ignored with a note;
//   - nowhere, so that it has its default value: the value of config.json is used without a note.
// Settings that affect only training (such as MtpConfig::enabled) come from `ours`. A note names each router
// loss with which the weights were trained.
LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where);

}  // namespace primus
