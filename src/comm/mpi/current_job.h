// Determines this process's rank and job, for any launcher.
#pragma once

#include <optional>

#include "comm/rendezvous/environment.h"

namespace primus::comm {

// Returns JobEnvironment::read(). If that is empty and Open MPI's launcher (mpirun) started several
// processes, returns a job over MPI. MPI then distributes a token and rank 0's address, and the job's groups
// communicate through MPI. MASTER_ADDR sets the address of rank 0's host. The default is the host's name. If
// this name resolves to a loopback address, the default is the address of the host's first network interface.
//
// Call it once, before other threads run. Throws Error: kInvalid as read() does, kDependency if MPI cannot be
// used.
std::optional<JobEnvironment> current_job();

}  // namespace primus::comm
