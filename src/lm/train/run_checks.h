// Checks before the first step of a training run. Internal to lm/train. Not thread-safe.
#pragma once

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

// Throws if ranks have different settings. Call this function before the first collective operation.
void compare_experiments(RunPlan& plan);
// Measures a step of the plan. If a rank lacks memory, the plan may be changed to keep fewer rows of shared
// experts, and is measured again. The number of kept rows does not change if the experiment sets it.
// Also sets the number of tokens per pass of the decoder, which is the same on all ranks
// (SessionSettings::sample_pass_tokens). Collective.
StepMeasurement measure_within_memory(RunPlan& plan, engine::Rank& rank);
// Throws Error(kInvalid), which lists changes that would help, if there is not enough memory.
void check_memory(RunPlan& plan, engine::Rank& rank, const StepMeasurement& measured);
// Throws Error(kInvalid) if a checkpoint does not fit on the disk. Call this function on rank 0 only.
void check_disk(const RunPlan& plan, const StepMeasurement& measured);

// Logs which settings of the experiment have no effect in this run: settings of exchanges between ranks that
// the job does not make, settings of GPUs on a CPU, and settings for parameters that the model does not have.
void note_settings_without_effect(const RunPlan& plan, const engine::ParameterStore& parameters);

}  // namespace primus
