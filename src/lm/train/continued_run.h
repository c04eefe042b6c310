// What the run that an experiment goes on from has recorded. Internal to lm/train. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "config/experiment.h"
#include "lm/train/resume.h"

namespace primus {

// What the checkpoint says that a run of this experiment goes on from: its own newest one, or without one
// that of `load`. Nothing where the run begins anew.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);
// The micro_batch_size that the state was trained with; nothing where it has none that can be read.
std::optional<std::int64_t> recorded_microbatch(const TrainerState& state);
// The micro_batch_size of the run that this one goes on from; nothing where it begins anew.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& experiment);

}  // namespace primus
