// Checks whether a family can represent the model that an experiment describes. Internal to lm/model.
#pragma once

#include "lm/model/model_config.h"
#include "lm/model/stated_model.h"

namespace primus {

// Writes the model `said` as a config.json of its family, reads it again, and returns the model read. Throws
// Error(kInvalid) at a setting that the family refuses, or whose value changes by writing and reading.
ModelConfig as_its_family_has_it(const StatedModel& stated, const ModelConfig& said);

}  // namespace primus
