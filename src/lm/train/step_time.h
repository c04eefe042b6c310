// How long a step takes here, found by running a small part of one on random tokens.
#pragma once

#include <functional>

#include "engine/rank.h"
#include "lm/model/family.h"
#include "lm/train/session.h"

namespace primus {

// Seconds of one training step of all its microbatches, evaluation and checkpoints not counted: microbatches
// and updates of a model of its own are run for about `seconds`, one of each at least, and the usual time of
// each is added up. With pipeline stages all microbatches of a step are run, since stages wait for each
// other.
//
// `rank` has a device (and, of several, a mesh) for itself and nothing reserved; it is given the memory of a
// training run. All ranks of a mesh call this together, and `from_first` gives them what rank 0 decides. The
// result is this rank's. Throws Error when the memory is not there.
double measure_step_time(
    engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families, double seconds,
    const std::function<bool(bool)>& from_first = [](bool own) { return own; });

}  // namespace primus
