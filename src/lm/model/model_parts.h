// Cuts the blocks of a model into consecutive parts for pipeline parallelism. The embedding belongs to the
// first part; final norm, head, loss and multi-token prediction belong to the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/pipeline_schedule.h"

namespace primus {

struct ModelParts {
  std::vector<std::int64_t> blocks = {};  // number of blocks per part; empty: one part with all blocks
  // Indices of the parts that are chunks of this rank, ascending; empty: all parts.
  std::vector<int> own = {};
};

// Returns the blocks of each part; the counts differ by at most one. If they do not divide evenly, the last
// part has one block less, because it also has norm, head and loss; if necessary, so do the first parts.
std::vector<std::int64_t> even_blocks(std::int64_t blocks, std::int64_t parts);
// Returns parts of (nearly) equal size, all on this rank. Some parts are empty if the model has fewer
// blocks.
ModelParts even_parts(std::int64_t blocks, int parts);

// Megatron-LM's settings for the number of blocks per stage, except the layout.
struct UnevenStages {
  std::optional<std::int64_t> first, last;  // numbers of blocks of the first and of the last stage
  // Whether the embedding counts as a block, and whether the loss counts as a block.
  bool embedding = false, loss = false;
};
// Returns the blocks of each part: even_blocks() over the stages and over the parts of each stage. If
// `uneven` sets the first or last stage, the other stages get equal counts. Throws Error(kInvalid) if there
// are fewer blocks than parts or if the remaining blocks do not divide evenly; the error says which number to
// change and to what.
std::vector<std::int64_t> split_blocks(std::int64_t blocks, const engine::PipelineShape& shape,
                                       const UnevenStages& uneven = {});

// Parses Megatron-LM's pipeline_model_parallel_layout, such as "Et*3|(tt|)*2,m|L". E is the embedding, t a
// block, m a multi-token prediction module and L the loss. '|' separates parts, "x*3" and "(xy)*3" repeat,
// commas are ignored. A layout without m has the modules before the loss. Returns the blocks of each part.
// Throws Error(kInvalid) if the text is not a layout or does not fit `blocks` and `modules`.
std::vector<std::int64_t> parse_layout(std::string_view layout, std::int64_t blocks, std::int64_t modules);

}  // namespace primus
