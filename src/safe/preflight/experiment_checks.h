// Does the machine fit an experiment: its memory, as measured by a step without kernels; its checkpoints, by
// the room on their disk; its data, by reading a little of it.
#pragma once

#include "config/experiment.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

// Appends findings. Does not throw for what is wrong with the experiment: that is a finding.
void check_experiment(const config::Experiment& experiment, NodeReport& report);

}  // namespace primus::preflight
