// Which rank of which job this process is, whoever started it.
#pragma once

#include <optional>

#include "comm/rendezvous/environment.h"

namespace primus::comm {

// As JobEnvironment::read(). Where that finds nothing and Open MPI's launcher (mpirun) started several
// processes, they agree through MPI on where rank 0 listens and on a token, and the groups of the job
// exchange through MPI. MASTER_ADDR chooses the address of rank 0's host, by default its name, or
// where that is a loopback address, the address of its first network interface.
//
// Call it once, before other threads run. Throws Error: kInvalid as read() does, kDependency when MPI cannot
// be used.
std::optional<JobEnvironment> current_job();

}  // namespace primus::comm
