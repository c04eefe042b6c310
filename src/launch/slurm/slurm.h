// Mode slurm: srun starts one launcher on each node, now or in a batch job. The launcher starts the node's
// ranks (direct.h) or a container (container.h).
//
// A batch job whose ranks save at a signal gets a warning before its time limit (--signal=B:USR1@120, unless
// the user sets another signal): its ranks save and stop. With --requeue, the job is then queued again and
// resumes. The script numbers the starts of the job in PRIMUS_JOB_START (lm/train/job_start.h).
// The job is also queued again if a node or rank is lost. The other ranks detect the lost node or rank long
// before Slurm does, and srun does not wait for a lost node. A job that lasted less than ten minutes is
// queued again at most three times.
//
// In batch jobs, options that only srun has are passed to the job's step.
#pragma once

#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/options/foreign_options.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

struct SlurmRequest {
  bool batch = false;              // true: sbatch; false: srun
  std::vector<GivenOption> given;  // options from the command line
  std::vector<std::string> inner;  // command that each node runs
  bool has_ranks = false;          // the command's processes are ranks of one job
  bool own_ranks = false;          // ranks of the native engine, which end within a second of each other
  std::string deaf = {};           // program that does not save at a signal; empty: the ranks save
  bool starts_anew = false;        // auto_continue_train is false
};

// Timeouts in seconds for srun's --wait. When the first launcher of a step has ended, srun waits this long
// and then ends the other launchers. After another KillWait (slurm.conf) + 2 seconds, srun itself exits.
// Without --wait, srun of Slurm 22.05 may wait forever: if a node dies and soon runs again, srun gets no
// message about lost tasks. Ranks of the native engine end within a second of each other; other programs may
// still be writing.
inline constexpr int kWaitForOwnRanks = 60, kWaitForRanks = 600;

struct SlurmPlan {
  Step step;
  ElsewhereNodes nodes;  // the known properties of the job's nodes
};

// Throws Error: kDependency if srun or sbatch is missing; also for invalid options.
SlurmPlan plan_slurm(const SlurmSettings& settings, const SlurmRequest& request,
                     const Surroundings& surroundings);

// Returns the script that sbatch reads from its standard input.
std::string batch_script(const std::vector<std::string>& srun, bool has_ranks, bool requeue,
                         const std::string& ranks_per_node);

}  // namespace primus::launch
