// Checks before the first step of a training run. Internal to lm/train. Not thread-safe.
#pragma once

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

// Throws if ranks have different settings. Call it before the first collective operation.
void compare_experiments(RunPlan& plan);
// Measures a step of the plan. If a rank lacks memory for it and the experiment leaves the kept rows of
// shared experts open, the plan is changed to keep fewer rows, and measured again. Collective.
StepMeasurement measure_within_memory(RunPlan& plan, engine::Rank& rank);
// Throws Error(kInvalid), which lists changes that would help, if there is not enough memory.
void check_memory(RunPlan& plan, engine::Rank& rank, const StepMeasurement& measured);
// Throws Error(kInvalid) if a checkpoint does not fit on the disk. Call it on rank 0 only.
void check_disk(const RunPlan& plan, const StepMeasurement& measured);

// Logs which settings of the experiment have no effect in this run: those that act between ranks if there is
// one, and those for parameters that the model does not have.
void note_settings_without_effect(const RunPlan& plan, const engine::ParameterStore& parameters);

}  // namespace primus
