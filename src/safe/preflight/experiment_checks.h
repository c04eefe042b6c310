// Checks whether an experiment fits the machine. A dry run of a step shows whether its memory suffices, the
// free disk space whether checkpoints fit, and a read of a part whether the data is readable.
#pragma once

#include "config/experiment.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

// Appends findings. Problems of the experiment are reported as findings, not thrown.
void check_experiment(const config::Experiment& experiment, NodeReport& report);

}  // namespace primus::preflight
