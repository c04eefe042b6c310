// Opens the data of a training run. Internal to lm/train. One thread.
#pragma once

#include <string>
#include <vector>

#include "lm/train/run_plan.h"

namespace primus {

// Fills in RunPlan::cyclic_order and datasets. Refuses ranks whose data is not the same. All ranks call it
// alike.
void open_run_data(RunPlan& plan);
// Says in the log what the data and the tokenizer are. `facts`: what the objective planned.
void tell_run_data(const RunPlan& plan, const std::vector<std::string>& facts);

}  // namespace primus
