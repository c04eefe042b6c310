// Reads parts of a model from an experiment: the attention, positions and experts of each layer. Internal to
// lm/model.
#pragma once

#include "lm/model/model_config.h"
#include "lm/model/stated_model.h"

namespace primus {

// Sets rope_scaling, attention, linear, moe, hyper and the layer specs. The family and the fields of
// ModelPart::kModel, kAttention and kIndexer in `c` must be set. Throws Error(kInvalid) at the location of an
// impossible setting.
void read_stated_parts(const StatedModel& stated, ModelConfig& c);

}  // namespace primus
