// Delayed scales of fp8 (engine/delayed_scales.h) in checkpoints, among the optimizer's tensors. The same
// bytes from any mesh, which any other loads; docs/formats/checkpoint.md has their names.
//
// Free functions without state.
#pragma once

#include <vector>

#include "engine/delayed_scales.h"
#include "engine/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"

namespace primus {

// Every rank has all of them, and the first of the job writes them. `reader` and what `scales` holds must
// outlive the sources.
std::vector<TensorSource> scale_sources(const engine::DelayedScales& scales, engine::Rank& rank,
                                        DeviceReader& reader);

// Layers by whether a checkpoint had their scales.
struct LoadedScales {
  std::int64_t loaded = 0, missing = 0;
};
// The reverse. Of a longer history the last steps are taken, and scales follow from it by today's rule, which
// is what was saved where the rule is the same. What the checkpoint does not have stays as it is. Throws
// Error(kInvalid) for tensors of another shape.
LoadedScales load_scales(const CheckpointReader& checkpoint, const engine::DelayedScales& scales,
                         engine::Rank& rank);

}  // namespace primus
