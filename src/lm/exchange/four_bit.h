// Reads weights that bitsandbytes quantised to 4 bits (lm/model/stored_four_bit.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lm/exchange/published_tensor.h"

namespace primus {

// Returns the tensor that has the name `full` in the folder; nullopt if this tensor is not quantised to 4
// bits. Throws kInvalid if the parts contradict each other or `shape`. Adds the names of the parts to `used`.
std::optional<PublishedTensor> find_four_bit(const SafetensorsFolder& folder, const std::string& full,
                                             const std::vector<std::int64_t>& shape, TensorNames& used);

}  // namespace primus
