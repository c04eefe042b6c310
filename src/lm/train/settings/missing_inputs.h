// Finds missing input files of a run before anything starts.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

namespace primus {

struct MissingInput {
  std::string key, path;
};

// Returns a list of the missing inputs. Globs are not checked.
std::vector<MissingInput> missing_inputs(const config::Experiment& experiment);

}  // namespace primus
