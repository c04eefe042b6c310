// Runs one process of another framework's job: shows and keeps its output, and converts its log to the run's
// metrics.jsonl and evaluations.jsonl, in the format of native runs.
#pragma once

#include <map>
#include <string>

#include "backends/installation.h"
#include "backends/job.h"

namespace primus::backends {

// This process's rank, and the size of its job.
struct ProcessPlace {
  int rank = 0, world = 1;  // rank in the job, and number of processes of the job
  int local_world = 1;      // number of processes on this machine
};

// Returns the complete command: the Python program and the words of the job's command.
std::vector<std::string> full_command(const ExternalJob& job, const Installation& installation);

// Runs the framework's process to its end, with its Python first on PATH, and returns its exit code. `quiet`:
// output goes only to files. Only the process that reports metrics writes the run's files. Throws Error if
// the process cannot be started.
int run_process(const ExternalJob& job, const Installation& installation,
                const config::Experiment& experiment, const ProcessPlace& place, bool quiet);

}  // namespace primus::backends
