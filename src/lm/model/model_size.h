// The number of parameters of a model.
#pragma once

#include <cstdint>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

struct ModelSize {
  std::int64_t parameters = 0;  // number of parameters in memory; tied and copied tensors count once
  std::int64_t active = 0;      // number of parameters that one token uses: of the routed experts, only top_k
                                // count
};

// Counts the parameters that the family declares, without allocating memory. Multi-token prediction modules
// count if config.mtp enables them.
ModelSize model_size(const ModelConfig& config, const FamilyRegistry& families);

}  // namespace primus
