// What a run would read and is not there: found before anything is started.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

namespace primus {

struct MissingInput {
  std::string key, path;
};

// What the run would read and is not there now. Globs are left to the run.
std::vector<MissingInput> missing_inputs(const config::Experiment& experiment);

}  // namespace primus
