// Counts the cores that this process may keep busy: the cores of its affinity mask, limited by the CPU
// bandwidth of its control groups (used by containers, Slurm and Kubernetes). See sched_setaffinity(2), and
// admin-guide/cgroup-v2 and scheduler/sched-bwc in the documentation of Linux.
//
// Thread-safe.
#pragma once

namespace primus {

// Returns at least 1.
int available_cores();

}  // namespace primus
