// Reads parts of a model from an experiment: each layer's attention, positions and experts. Internal to
// lm/model.
#pragma once

#include "lm/model/model_config.h"
#include "lm/model/stated_model.h"

namespace primus {

// Fills in rope_scaling, attention, linear, moe, hyper and the layer specs. The family and the fields of
// ModelPart::kModel, kAttention and kIndexer in `c` must be set. Throws Error(kInvalid) at an impossible
// setting.
void read_stated_parts(const StatedModel& stated, ModelConfig& c);

}  // namespace primus
