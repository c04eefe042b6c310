// Checks whether an experiment fits the machine. Compares the memory that a dry run of a step finds with the
// device's memory, and the size of checkpoints with the free disk space. Also reads a part of the data.
#pragma once

#include "config/experiment.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

// Appends findings. Problems of the experiment are reported as findings, not thrown.
void check_experiment(const config::Experiment& experiment, NodeReport& report);

}  // namespace primus::preflight
