// Loads and saves parameters that a rank stores in 4 bits (engine/runtime/four_bit_storage.h).
#pragma once

#include <functional>
#include <vector>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/model/stored_four_bit.h"
#include "lm/model/weights.h"

namespace primus {

// Loads one part of a parameter in 4 bits: bit for bit if `stored` is a tensor in 4 bits, and otherwise by
// quantising the numbers that `read` writes into its argument, all elements of the published tensor. Does
// nothing if this rank does not have the part.
void load_four_bit(engine::Parameter& p, const engine::CheckpointPart& part,
                   const std::optional<StoredFourBit>& stored,
                   const std::function<void(std::vector<float>& values)>& read, engine::Rank& rank);

// Returns the numbers of a stored tensor.
std::vector<float> expanded(const StoredFourBit& stored);

// Adds the sources of one part for a checkpoint. `compute`: the type of the expanded values.
void add_four_bit_sources(const engine::Parameter& p, const engine::CheckpointPart& part, DType compute,
                          DeviceReader& reader, std::vector<TensorSource>& sources);

}  // namespace primus
