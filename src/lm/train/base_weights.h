// Which weights a run began from, so that a run is not resumed under the name of another model.
#pragma once

#include "base/files/file.h"
#include "config/experiment.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/train/resume.h"

namespace primus {

// The folder's path, and a hash of its weights: of a checkpoint its manifest, which holds a checksum of each
// tensor; of other folders the sizes of their safetensors files and blocks drawn evenly from each, so that a
// model of any size takes milliseconds. Errors: kIo.
InputIdentity identity_of_weights(const Path& folder);

// Compares `load` of `experiment` with the weights that the run of `checkpoint` began from. Refuses a `load`
// that names other weights: they would never be read. Returns a warning where `load` names a folder that does
// not exist, else nothing. Checkpoints of older versions hold no hash: nothing is compared. A `load` that
// names the run's own checkpoints (`own`), as Megatron's scripts do, is fine, and so is a later checkpoint of
// the run that this one began from.
std::string check_base_weights(const CheckpointReader& checkpoint, const TrainerState& state,
                               const config::Experiment& experiment, const Path& own);

}  // namespace primus
