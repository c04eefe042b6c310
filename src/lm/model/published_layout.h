// Between a parameter's elements in memory and the tensors of published checkpoints: which elements a part
// is, and in which order (engine/parameters.h, CheckpointPart). Host memory only; pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parameters.h"
#include "lm/checkpoint/tensor_source.h"

namespace primus {

// The shape of the published tensor.
std::vector<std::int64_t> published_shape(const engine::Parameter& p, const engine::CheckpointPart& part);
// The part's elements within `whole`, which is as large as the parameter: one run, in the order of memory.
Tensor part_of(const Tensor& whole, const engine::Parameter& p, const engine::CheckpointPart& part);

// Neighbours in the published tensor, where they are among the part's elements in memory: `count` of them,
// `step` apart.
struct PlacesInMemory {
  std::int64_t first = 0, step = 1, count = 1;
};
// Of element `i` and those after it, as many as lie in one row of `cols` elements, or in one column.
PlacesInMemory places_in_memory(const engine::CheckpointPart& part, std::int64_t i, std::int64_t cols);

// How the published order of a part's elements differs from that in memory.
AxisOrder axis_order(const engine::CheckpointPart& part);

}  // namespace primus
