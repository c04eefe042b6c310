// Records of the run that an experiment continues. Internal to lm/train. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "config/experiment.h"
#include "lm/train/resume.h"

namespace primus {

// Returns the state in the checkpoint that a run of this experiment continues: the run's own newest
// checkpoint, otherwise the checkpoint that `load` names. Empty if the run starts from scratch.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);
// Returns the micro_batch_size that the state was trained with; empty if the record has no readable value.
std::optional<std::int64_t> recorded_microbatch(const TrainerState& state);
// Returns the micro_batch_size of the run that this experiment continues; empty if the run starts from
// scratch.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& experiment);

}  // namespace primus
