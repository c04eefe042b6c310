// Reads weights that bitsandbytes quantised to 4 bits (nf4, fp4; Dettmers et al. 2023, arXiv:2305.14314), as
// its checkpoints store them:
//
//   NAME              uint8 [(elements + 1) / 2, 1]: two codes per byte, the high half first
//   NAME.quant_map    fp32 [16]: the number of each code
//   NAME.absmax       fp32: a factor for each block of the flattened tensor
//   NAME.quant_state.bitsandbytes__nf4 (or ...__fp4)   JSON in uint8: shape, blocksize, dtype
//
// With double quantisation, absmax is uint8. A factor is then nested_quant_map[absmax] times the
// nested_absmax of its block, plus nested_offset. A block may contain elements of several rows.
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
