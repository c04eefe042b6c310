// Saves and loads delayed FP8 scales (engine/delayed_scales.h) among a checkpoint's optimizer tensors. Every
// mesh writes the same bytes and can load the bytes that any other mesh wrote; docs/formats/checkpoint.md
// lists the tensor names.
//
// Free functions without state.
#pragma once

#include <vector>

#include "engine/delayed_scales.h"
#include "engine/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"

namespace primus {

// Returns the tensors to save. Every rank has all scales; rank 0 writes them. `reader` and the tensors of
// `scales` must outlive the sources.
std::vector<TensorSource> scale_sources(const engine::DelayedScales& scales, engine::Rank& rank,
                                        DeviceReader& reader);

// Numbers of layers with and without scales in the checkpoint.
struct LoadedScales {
  std::int64_t loaded = 0, missing = 0;
};
// Loads the scales. If the saved history is longer than needed, uses only its last steps. Recomputes the
// scales by the current rule; if the rule is unchanged, they equal the saved scales. Layers that the
// checkpoint lacks keep their scales. Throws Error(kInvalid) for tensors of another shape.
LoadedScales load_scales(const CheckpointReader& checkpoint, const engine::DelayedScales& scales,
                         engine::Rank& rank);

}  // namespace primus
