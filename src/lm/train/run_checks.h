// Checks of a training run before its first step. Internal to lm/train. One thread.
#pragma once

#include "engine/rank.h"
#include "lm/train/run_plan.h"
#include "lm/train/session.h"

namespace primus {

// Refuses ranks that would not train the same: before the first thing that ranks do together.
void compare_experiments(RunPlan& plan);
// Throws Error(kInvalid) with what would help, if the memory is not available.
void check_memory(RunPlan& plan, engine::Rank& rank, const StepMeasurement& measured);
// Rank 0 only: throws Error(kInvalid) if a checkpoint does not fit on the disk.
void check_disk(const RunPlan& plan, const StepMeasurement& measured);

}  // namespace primus
