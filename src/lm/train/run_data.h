// Opens the data of a training run. Internal to lm/train. One thread.
#pragma once

#include <string>
#include <vector>

#include "lm/train/run_plan.h"

namespace primus {

// Fills in RunPlan::cyclic_order and datasets. Refuses ranks with different data. All ranks must call it.
void open_run_data(RunPlan& plan);
// Logs which data and tokenizer the run uses. `facts`: sentences from the objective's plan.
void log_run_data(const RunPlan& plan, const std::vector<std::string>& facts);

}  // namespace primus
