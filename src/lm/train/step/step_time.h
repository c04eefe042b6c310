// Measures the time of a training step on this machine, by running a small part of it on random tokens.
#pragma once

#include <functional>

#include "engine/runtime/rank.h"
#include "lm/model/family.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the seconds of one training step with all its microbatches (or with those that the step is expected
// to fill, SessionSettings::filled_microbatches), without evaluation, checkpoints and generated answers.
// Runs microbatches and updates of a separate model for about `seconds`, at least one microbatch and one
// update. Adds up the median times. With pipeline stages, runs all microbatches of a step, because stages
// wait for each other.
//
// No other code may use the device or mesh of `rank`, and no memory may be reserved. The function allocates
// the memory of a training run. All ranks of a mesh call this function together. `from_first` broadcasts the
// decisions of rank 0. Each rank returns its own time. Throws Error if there is not enough memory.
double measure_step_time(
    engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families, double seconds,
    const std::function<bool(bool)>& from_first = [](bool own) { return own; });

}  // namespace primus
