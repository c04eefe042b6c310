// Opens the data of a training run. Internal to lm/train. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "lm/train/run_plan.h"

namespace primus {

// Sets RunPlan::cyclic_order and RunPlan::datasets. Throws if ranks have different data. All ranks must call
// it.
void open_run_data(RunPlan& plan);
// Logs on rank 0 which data and which tokenizer the run uses. `facts`: sentences from the objective's plan.
void log_run_data(const RunPlan& plan, const std::vector<std::string>& facts);

}  // namespace primus
