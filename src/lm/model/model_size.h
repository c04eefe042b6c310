// How many parameters a model has.
#pragma once

#include <cstdint>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

struct ModelSize {
  std::int64_t parameters = 0;  // in memory: tied and copied tensors once
  std::int64_t active = 0;      // those that one token meets: of routed experts, its top_k
};

// Counted from what the family declares; nothing is allocated. Multi-token prediction counts where
// config.mtp enables it.
ModelSize model_size(const ModelConfig& config, const FamilyRegistry& families);

}  // namespace primus
