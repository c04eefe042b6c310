// Records of the run that an experiment continues. Internal to lm/train. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "config/experiment.h"
#include "lm/train/resume.h"

namespace primus {

// The state in the checkpoint that a run of this experiment continues: its own newest one, otherwise that of
// `load`. Nothing if the run begins anew.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);
// The micro_batch_size that the state was trained with; nothing if it has none that can be read.
std::optional<std::int64_t> recorded_microbatch(const TrainerState& state);
// The micro_batch_size of the run that this one goes on from; nothing if it begins anew.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& experiment);

}  // namespace primus
