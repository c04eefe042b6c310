// Checks whether an experiment fits the machine: its memory, measured by a dry run of a step; its
// checkpoints, by free disk space; its data, by reading a part of it.
#pragma once

#include "config/experiment.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

// Appends findings. Problems of the experiment are reported as findings, not thrown.
void check_experiment(const config::Experiment& experiment, NodeReport& report);

}  // namespace primus::preflight
