// How long a step takes here, found by running a small part of one on random tokens.
#pragma once

#include "lm/model/family.h"
#include "lm/train/session.h"

namespace primus {

// Seconds of one training step of all its microbatches, evaluation and checkpoints not counted: microbatches
// and updates of a model of its own are run for about `seconds`, one of each at least, and the usual time of
// each is added up. Takes the memory of a training run and gives it back. `threads` as in the experiment.
// Throws Error when the memory is not there.
double measure_step_time(const SessionSettings& settings, const FamilyRegistry& families, int threads,
                         double seconds);

}  // namespace primus
