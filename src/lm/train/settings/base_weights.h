// The identity of the weights from which a run started. The identity prevents a run from being resumed with
// another model.
#pragma once

#include "base/files/file.h"
#include "config/experiment.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/train/resume.h"

namespace primus {

// Returns the folder's path and a hash of its weights. A checkpoint is identified by its manifest, which
// holds a checksum of each tensor. Other folders are identified by the sizes of their safetensors files and
// by blocks sampled evenly from each file, which takes milliseconds for any model size. Errors: kIo.
InputIdentity identity_of_weights(const Path& folder);

// Compares the key `load` of `experiment` with the weights from which the run of `checkpoint` started. A
// `load` that names other weights is an error, because a resumed run would never read these weights. A `load`
// that names a missing folder is an error if the run was not started with this `load`; else returns a
// warning, which is "" if the folder exists. Two other values of `load` are allowed:
// the run's own checkpoints (`own`), as in Megatron's scripts; and a later checkpoint of the run whose
// weights this run started from. Compares nothing if the checkpoint is of an older version without a hash.
std::string check_base_weights(const CheckpointReader& checkpoint, const TrainerState& state,
                               const config::Experiment& experiment, const Path& own);

}  // namespace primus
