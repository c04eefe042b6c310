// Maps a parameter's elements in memory to the tensors of published checkpoints: which elements a part
// covers, and in which order (CheckpointPart in engine/parameters.h). Pure functions on host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parameters.h"
#include "lm/checkpoint/tensor_source.h"

namespace primus {

// The shape of the published tensor.
std::vector<std::int64_t> published_shape(const engine::Parameter& p, const engine::CheckpointPart& part);
// Returns the part's elements in `whole`, which has the parameter's size. The elements are one contiguous
// run, in memory order.
Tensor part_of(const Tensor& whole, const engine::Parameter& p, const engine::CheckpointPart& part);

// The places in memory, among the part's elements, of `count` neighbouring elements of the published tensor.
// Neighbours are `step` apart.
struct PlacesInMemory {
  std::int64_t first = 0, step = 1, count = 1;
};
// Returns the places of element `i` and of the published elements after it, up to the end of the row in
// memory (`cols` elements) or, if the published tensor is transposed, up to the end of the column.
PlacesInMemory places_in_memory(const engine::CheckpointPart& part, std::int64_t i, std::int64_t cols);

// Returns how the published order of a part's elements differs from the order in memory.
AxisOrder axis_order(const engine::CheckpointPart& part);

}  // namespace primus
