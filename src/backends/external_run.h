// Running one process of a job of another framework: its output is shown and kept, and what it logs becomes
// the run's metrics.jsonl and evaluations.jsonl, as native runs write them.
#pragma once

#include <map>
#include <string>

#include "backends/installation.h"
#include "backends/job.h"

namespace primus::backends {

// This process's place among those of the job.
struct ProcessPlace {
  int rank = 0, world = 1;  // of processes
  int local_world = 1;      // of this machine
};

// The command as it is started, Python in front, and the variables it gets besides the experiment's.
std::vector<std::string> full_command(const ExternalJob& job, const Installation& installation);

// Runs it to its end in this process's place, with its Python first on PATH: the framework's exit code.
// `quiet`: its output only goes to files. The one process that reports writes the run's files. Throws Error
// where it cannot be started.
int run_process(const ExternalJob& job, const Installation& installation,
                const config::Experiment& experiment, const ProcessPlace& place, bool quiet);

}  // namespace primus::backends
