// Cuts the blocks of a model into consecutive parts for pipeline parallelism. The embedding belongs to the
// first part; final norm, head, loss and multi-token prediction belong to the last part.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/parallel/pipeline_schedule.h"

namespace primus {

struct ModelParts {
  std::vector<std::int64_t> blocks = {};  // number of blocks per part; empty: one part with all blocks
  // Indices of the parts that are this rank's chunks, ascending; empty: all parts.
  std::vector<int> own = {};
};

// Returns the number of blocks of each part; the numbers differ by at most one. If the division leaves a
// remainder, the last part has one block less, because this part also has norm, head and loss. If that is not
// enough, the first parts have one block less, too.
std::vector<std::int64_t> even_blocks(std::int64_t blocks, std::int64_t parts);
// Returns parts of (nearly) equal size that are all on this rank. If the model has fewer blocks than parts,
// some parts are empty.
ModelParts even_parts(std::int64_t blocks, int parts);

// Megatron-LM's settings for the number of blocks per stage, except the layout.
struct UnevenStages {
  std::optional<std::int64_t> first, last;  // number of blocks of the first stage, and of the last stage
  // Whether the embedding counts as a block, and whether the loss counts as a block.
  bool embedding = false, loss = false;
};
// Returns the number of blocks of each part: even_blocks() divides the blocks among stages, and the blocks of
// a stage among its parts. If `uneven` sets the first or last stage, the other stages get equal numbers.
// Throws Error(kInvalid) if there are fewer blocks than parts, or if the remaining blocks do not divide
// evenly. The message says which setting to change and to which value.
std::vector<std::int64_t> split_blocks(std::int64_t blocks, const engine::PipelineShape& shape,
                                       const UnevenStages& uneven = {});

// Parses Megatron-LM's pipeline_model_parallel_layout, such as "Et*3|(tt|)*2,m|L". E is the embedding, t a
// block, m a multi-token prediction module and L the loss. '|' separates parts, "x*3" and "(xy)*3" repeat,
// commas are ignored. In a layout without m, the modules precede the loss. Returns the number of blocks of
// each part. Throws Error(kInvalid) if the text is not a layout or does not fit `blocks` and `modules`.
std::vector<std::int64_t> parse_layout(std::string_view layout, std::int64_t blocks, std::int64_t modules);

}  // namespace primus
