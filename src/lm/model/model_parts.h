// How the blocks of a model are cut into parts for a pipeline: one part after the other in the forward pass.
// The embedding belongs to the first part; final norm, head, loss and multi-token prediction to the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/pipeline_schedule.h"

namespace primus {

struct ModelParts {
  std::vector<std::int64_t> blocks = {};  // of each part; empty: there is one, with all blocks
  // Which parts the chunks of this rank are, ascending; empty: all of them.
  std::vector<int> own = {};
};

// Blocks of each part, which differ by one at the most: the last part has one less first, because norm, head
// and loss stand beside it, then parts from the front.
std::vector<std::int64_t> even_blocks(std::int64_t blocks, std::int64_t parts);
// Parts of (nearly) equal numbers of blocks, which may be fewer than parts, all of them on this rank.
ModelParts even_parts(std::int64_t blocks, int parts);

// Megatron-LM's ways to say how many blocks a stage has, besides the layout.
struct UnevenStages {
  std::optional<std::int64_t> first, last;  // blocks of the first and of the last stage
  // The embedding, or the loss, stands for one block.
  bool embedding = false, loss = false;
};
// Blocks of each part: even_blocks() of the stages, and of a stage's own parts, or, where `uneven` says
// something, all other stages alike. Throws
// Error(kInvalid), which names the number to change and to what, for fewer blocks than parts, and where what
// `uneven` leaves does not come out even.
std::vector<std::int64_t> split_blocks(std::int64_t blocks, const engine::PipelineShape& shape,
                                       const UnevenStages& uneven = {});

// Megatron-LM's layout, pipeline_model_parallel_layout: "Et*3|(tt|)*2,m|L". A letter stands for the embedding
// (E), a block (t), a module of multi-token prediction (m) and the loss (L), '|' separates parts, "x*3" and
// "(xy)*3" repeat, commas mean nothing. Modules without an m stand before the loss. Gives the blocks of each
// part. Throws Error(kInvalid) for text that is no layout, or not one of a model with so many blocks and
// modules.
std::vector<std::int64_t> parse_layout(std::string_view layout, std::int64_t blocks, std::int64_t modules);

}  // namespace primus
