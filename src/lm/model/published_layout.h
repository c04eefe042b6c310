// Maps the elements of a parameter in memory to tensors of published checkpoints: which elements a tensor
// contains, and in which order (CheckpointPart in engine/runtime/parameters.h). Pure functions on host
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/parameters.h"
#include "lm/checkpoint/tensor_source.h"

namespace primus {

// Returns the shape of the published tensor.
std::vector<std::int64_t> published_shape(const engine::Parameter& p, const engine::CheckpointPart& part);
// Returns the elements of `whole` that belong to the part. `whole` has the size of the parameter; the
// elements are contiguous and in memory order.
Tensor part_of(const Tensor& whole, const engine::Parameter& p, const engine::CheckpointPart& part);

// Where `count` neighbouring elements of the published tensor are in memory. `first` is an index among the
// part's elements. Further indices are `step` apart.
struct PlacesInMemory {
  std::int64_t first = 0, step = 1, count = 1;
};
// Returns where element `i` of the published tensor and the elements after `i` are in memory. The range ends
// at the end of the row in memory (`cols` elements). If the published tensor is transposed, the range ends at
// the end of the column.
PlacesInMemory places_in_memory(const engine::CheckpointPart& part, std::int64_t i, std::int64_t cols);

// Returns the difference between the published order of a part's elements and their order in memory.
AxisOrder axis_order(const engine::CheckpointPart& part);

}  // namespace primus
