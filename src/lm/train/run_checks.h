// What a training run checks before its first step. Internal to lm/train. One thread.
#pragma once

#include "engine/rank.h"
#include "lm/train/run_plan.h"
#include "lm/train/session.h"

namespace primus {

// Refuses ranks that would not train the same: before the first thing that ranks do together.
void compare_experiments(RunPlan& plan);
// Throws Error(kInvalid) with what would help where the memory is not there.
void check_memory(RunPlan& plan, engine::Rank& rank, const StepMeasurement& measured);
// Of rank 0: whether a checkpoint fits where it will be saved.
void check_disk(const RunPlan& plan, const StepMeasurement& measured);

}  // namespace primus
