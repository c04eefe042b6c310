// Starts of a job that a scheduler may start again, such as a Slurm job with --requeue. With
// auto_continue_train: false, only the first start of the job trains from the beginning; later starts
// continue from the job's own checkpoints. Slurm's batch script numbers the starts in the variable
// PRIMUS_JOB_START, "JOB.RESTARTS". Thread-safe, if no other thread changes the environment.
#pragma once

#include "base/files/file.h"
#include "config/experiment.h"

namespace primus {

// Returns whether auto_continue_train is false, so that a start trains from the beginning.
bool starts_anew(const config::Experiment& experiment);

// If an earlier start of this job began the run, sets auto_continue_train of `experiment` to true and returns
// true. All ranks must call this before rank 0 calls record_start(). Does nothing without PRIMUS_JOB_START.
bool continue_own_job(config::Experiment& experiment);

// Records in the folder of the checkpoints that this start of the job begins the run. Throws FileError.
void record_start(const Path& checkpoints);

}  // namespace primus
