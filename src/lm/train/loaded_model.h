// The architecture that `load` brings with it, against what the experiment says about the model.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

struct LoadedModel {
  ModelConfig config;
  std::vector<std::string> notes;  // sentences: where experiment and folder differ, and whose value is taken
};

// A folder of weights knows its architecture: `loaded`, from the config.json named `where`, is what gets
// trained. `ours` is what the experiment's keys amount to. Of keys that differ:
//   - set in the experiment or on the command line: rotary keys and max_position_embeddings stretch the
//   context, and
//     are taken; any other throws Error(kInvalid) at its place;
//   - set by a preset: shapes throw, the rest is passed over with a note;
//   - set by nobody: config.json's value, without a word.
// How a model is trained (MtpConfig::enabled and its like) is the experiment's to say.
LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where);

}  // namespace primus
