// How long a step takes here, found by running a small part of one on random tokens.
#pragma once

#include "device/plugin.h"
#include "lm/model/family.h"
#include "lm/train/session.h"

namespace primus {

// Seconds of one training step of all its microbatches, evaluation and checkpoints not counted: microbatches
// and updates of a model of its own are run for about `seconds`, one of each at least, and the usual time of
// each is added up. Takes the memory of a training run on a device of its own and gives it back.
// Throws Error when the memory is not there.
double measure_step_time(const SessionSettings& settings, const FamilyRegistry& families,
                         const DeviceSpec& device, double seconds);

}  // namespace primus
