// Determines this process's rank and job, for any launcher.
#pragma once

#include <optional>

#include "comm/rendezvous/environment.h"

namespace primus::comm {

// Returns JobEnvironment::read(). If that is empty and Open MPI's launcher (mpirun) started several
// processes, MPI distributes a token and the address where rank 0 listens, and the job's groups communicate
// through MPI. MASTER_ADDR sets the address of rank 0's host. The default is its host name, or the address of
// its first network interface if the name resolves to a loopback address.
//
// Call it once, before other threads run. Throws Error: kInvalid as read() does, kDependency if MPI cannot be
// used.
std::optional<JobEnvironment> current_job();

}  // namespace primus::comm
