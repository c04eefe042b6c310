// Checks of snapshots in memory (snapshot_interval). Pure function.
#pragma once

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Reports if a run that takes snapshots has state that they do not contain.
void validate_snapshots(const Experiment& e, bool generates_answers, Problems& problems);

}  // namespace primus::config
