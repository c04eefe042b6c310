// Whether a family can hold the model that an experiment states. Internal to lm/model.
#pragma once

#include "lm/model/model_config.h"
#include "lm/model/stated_model.h"

namespace primus {

// The stated model as its family reads it from the config.json that it writes. Throws Error(kInvalid) at the
// setting that the family refuses, or has another value for.
ModelConfig as_its_family_has_it(const StatedModel& stated, const ModelConfig& said);

}  // namespace primus
