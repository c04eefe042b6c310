// Loads the weights from which a run started into another model, for example a reference model.
#pragma once

#include <cstdint>
#include <optional>

#include "base/files/file.h"
#include "config/experiment.h"
#include "engine/runtime/rank.h"
#include "lm/train/step/model_instance.h"

namespace primus {

// The weights from which a run started.
struct StartWeights {
  Path folder;                                 // model folder or checkpoint; may no longer exist
  std::optional<std::uint64_t> fingerprint{};  // recorded hash (identity_of_weights); empty for a new run
};
// Returns the weights from which a run of this experiment started or will start; empty if it started from
// random weights. If the recorded folder no longer holds these weights and `load` names a folder that does,
// returns the folder of `load`. Errors: kIo.
std::optional<StartWeights> start_weights_of(const config::Experiment& experiment);

// Loads the weights that `load` names. If the run has a checkpoint, loads the weights from which the run
// started, which that checkpoint records: `load` may name a run with newer checkpoints by now. Without
// `load`, initializes the weights as a run with the experiment's seed does. All ranks must call it.
//
// Throws Error(kInvalid) at the key `load` if the folder does not exist any more, or if its weights have
// changed.
void load_start_weights(const config::Experiment& experiment, engine::Rank& rank, ModelInstance& model);

// Loads the reference model's weights: as load_start_weights(), or, with reference_adapters, the weights of
// the base model with these adapters. Parameters that `model` shares with another model keep their values.
// All ranks must call it. Throws the errors of load_start_weights().
void load_reference_weights(const config::Experiment& experiment, engine::Rank& rank, ModelInstance& model);

// Loads the weights of a model folder or a checkpoint; parameters that may be missing keep their values.
void load_model_weights(const Path& folder, engine::Rank& rank, ModelInstance& model);

}  // namespace primus
