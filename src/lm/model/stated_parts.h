// The parts of a model as an experiment states them: which layers have which attention, positions, experts.
// Internal to lm/model.
#pragma once

#include "lm/model/model_config.h"
#include "lm/model/stated_model.h"

namespace primus {

// Fills in rope_scaling, attention, linear, moe, hyper and conv_layers. `c` has its family and the fields of
// ModelPart::kModel, kAttention and kIndexer already. Throws Error(kInvalid) at the setting that cannot be.
void read_stated_parts(const StatedModel& stated, ModelConfig& c);

}  // namespace primus
