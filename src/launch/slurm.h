// Mode slurm: srun starts one launcher on each node, now or from a batch job; the launcher starts the node's
// ranks (direct.h) or a container (container.h).
//
// A batch job whose ranks can save is warned before its time limit (--signal=B:USR1@120, unless the user says
// otherwise): its ranks save and stop. With --requeue it is then queued again, and goes on where it stopped.
// So it is when a node or a rank is lost: the other ranks notice long before Slurm does, and srun does not
// wait for a node that is gone. A job that lasted less than ten minutes is queued again three times at the
// most.
//
// Options of srun alone go to the step of a batch job.
#pragma once

#include <string>
#include <vector>

#include "launch/direct.h"
#include "launch/foreign_options.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

struct SlurmRequest {
  bool batch = false;              // sbatch; otherwise srun
  std::vector<GivenOption> given;  // on the command line
  std::vector<std::string> inner;  // what each node runs
  bool has_ranks = false;          // its processes are ranks of one job
  bool own_ranks = false;          // of this engine: they end together
};

// Where a node dies and comes back soon, Slurm 22.05's srun waits for its tasks for ever, although the other
// nodes' have failed: nobody tells it that they are gone. So many seconds after the first launcher of a step
// has ended, srun ends the others (--wait), and itself KillWait + 2 seconds later. Ranks of this engine end
// within a second of each other; other programs may still be writing.
inline constexpr int kWaitForOwnRanks = 60, kWaitForRanks = 600;

struct SlurmPlan {
  Step step;
  ElsewhereNodes nodes;  // as far as they are known
};

// Throws Error: srun or sbatch is missing (kDependency), options that make no sense.
SlurmPlan plan_slurm(const SlurmSettings& settings, const SlurmRequest& request,
                     const Surroundings& surroundings);

// The script that sbatch is given on its standard input.
std::string batch_script(const std::vector<std::string>& srun, bool has_ranks, bool requeue,
                         const std::string& ranks_per_node);

}  // namespace primus::launch
