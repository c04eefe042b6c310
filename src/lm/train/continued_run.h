// Reads records of the run that an experiment continues. Internal to lm/train. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "config/experiment.h"
#include "lm/train/resume.h"

namespace primus {

// Returns the trainer state of the checkpoint that a run of this experiment would resume: the newest
// checkpoint of the run itself, or else the checkpoint that `load` names. Empty if the run would start from
// scratch.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);
// Returns the micro_batch_size with which the state was trained; empty if the state contains no readable
// value.
std::optional<std::int64_t> recorded_microbatch(const TrainerState& state);
// Returns the micro_batch_size of the run that this experiment continues; empty if the run starts from
// scratch.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& experiment);

}  // namespace primus
