// Saves and loads delayed FP8 scales (engine/runtime/delayed_scales.h), which are stored among the optimizer
// tensors of a checkpoint. The stored bytes do not depend on the mesh; docs/formats/checkpoint.md lists the
// tensor names.
//
// Free functions without state.
#pragma once

#include <vector>

#include "engine/runtime/delayed_scales.h"
#include "engine/runtime/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"

namespace primus {

// Returns the tensors to save. All ranks have all scales, and rank 0 writes them. `reader` and the tensors of
// `scales` must outlive the sources.
std::vector<TensorSource> scale_sources(const engine::DelayedScales& scales, engine::Rank& rank,
                                        DeviceReader& reader);

// Number of layers whose scales were in the checkpoint, and number of layers whose scales were not.
struct LoadedScales {
  std::int64_t loaded = 0, missing = 0;
};
// Loads the scales. If the saved history is longer than needed, uses only its last steps. Computes the scales
// from the history by the current rule. If the rule has not changed, the computed scales equal the saved
// scales. A layer without data in the checkpoint keeps its scales. Throws Error(kInvalid) for tensors of
// another shape.
LoadedScales load_scales(const CheckpointReader& checkpoint, const engine::DelayedScales& scales,
                         engine::Rank& rank);

}  // namespace primus
