// A decoder-only language model: embedding, blocks of its family, final norm, head. For a pipeline, the model
// is cut into parts of consecutive blocks (lm/model/model_parts.h). The parts on this rank are the rank's
// chunks. Parameters belong to the rank's ParameterStore.
//
// If tensor ranks share the layers (ParameterStore::mesh), hidden states and the residual stream hold this
// rank's tokens, [T/n, hidden]. Inputs and losses cover all T tokens on every rank.
//
// Not thread-safe; one per rank.
#pragma once

#include <memory>
#include <vector>

#include "base/system/thread_pool.h"
#include "engine/delta_rule.h"
#include "engine/parallel_operators.h"
#include "engine/parameters.h"
#include "engine/phase.h"
#include "engine/rank.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/model/model_parts.h"
#include "lm/model/multi_token_prediction.h"

namespace primus {

// Inputs of depth k of multi-token prediction, [T] each. At position t: token t + k as the input, the next
// token as the label, and the weight of the label's loss. The weight is 0 if one of the two tokens belongs to
// another document.
struct MtpInputs {
  engine::Value tokens, labels, loss_weights;
};

// Device inputs of one microbatch, as Values of its tape, [T] each.
struct ModelInputs {
  engine::Value tokens = {};  // int32 token ids; needed by the first part and by chunks with needs_tokens()
  // int32 labels, and the fp32 weight of each token's loss in the training loss (for a training batch:
  // loss_mask / sum of the mask). Needed by the last part if a loss is computed.
  engine::Value labels = {}, loss_weights = {};
  BlockInputs blocks;          // inputs of blocks; the model adds the rope tables
  std::vector<MtpInputs> mtp;  // inputs of each depth; only used by mtp_losses
};

// Extra entries in the ring of recent inputs or states that convolutions and linear attention keep per
// sequence. This number of tokens can be dropped from a sequence's end without reading the sequence again.
inline constexpr std::int64_t kSpareTokens = engine::kDeltaRuleSpare;
// Returns the length of the ring for a convolution of this width.
std::int64_t conv_ring(std::int64_t width);

class LanguageModel {
 public:
  // Declares all parameters in `store`; parameters of other ranks' parts are declared without memory. The
  // embedding belongs to the first part. The head and, if config.mtp enables it, multi-token prediction
  // belong to the last part. If the last part also needs the embedding (tied embeddings or multi-token
  // prediction) and another rank has the first part, both ranks hold the embedding
  // (ParameterStore::Group::at_both_ends).
  LanguageModel(const ModelConfig& config, const FamilyRegistry& families, engine::ParameterStore& store,
                const ModelParts& parts = {});

  // Allocates the rope tables for `positions` positions in the persistent arena. Call once, before forward().
  void allocate_tables(engine::Rank& rank, std::int64_t positions);

  // Runs one chunk. The first part reads tokens, later parts read `x` (the residual stream [T, streams *
  // hidden]). The last part returns the hidden states after the final norm, other parts return the residual
  // stream.
  engine::Value forward(int chunk, const ModelInputs& inputs, engine::Value x = {}) const;
  // Runs all chunks, on a rank that has all parts.
  engine::Value forward(const ModelInputs& inputs) const;
  // Returns the weighted loss per token, [T] fp32 (engine::lm_head_loss).
  engine::Value loss(const engine::Value& hidden, const ModelInputs& inputs) const;
  // Like loss(), but `weigh` may change the loss weights before they are read. `weigh` gets -ln p(label) of
  // every token, [T] fp32, and enqueues kernels that write the memory of inputs.loss_weights.
  engine::Value weighed_loss(const engine::Value& hidden, const ModelInputs& inputs,
                             FunctionRef<void(const Tensor& losses)> weigh) const;
  // Returns the loss per token for each multi-token prediction depth, from the output of forward().
  std::vector<engine::Value> mtp_losses(const engine::Value& hidden, const ModelInputs& inputs) const;
  // Returns [rows of hidden on all tensor ranks, vocab] in the compute type.
  engine::Value logits(const engine::Value& hidden) const;
  // Selects rows of the hidden states, for logits() or loss() of few tokens. `rows`, [n] int32, index the T
  // tokens of all tensor ranks and name this rank's share of the requested rows.
  engine::Value select(const engine::Value& hidden, const engine::Value& rows) const;

  // Allocates a KV cache for incremental decoding: pages for `sequences` sequences of up to `capacity`
  // tokens, for this rank's blocks and heads, and their page tables. The cache has `pages` pages of
  // `page_size` tokens. The cache lives as long as the phase.
  KvCache make_kv_cache(engine::Phase& phase, DType dtype, std::int64_t sequences, std::int64_t capacity,
                        std::int64_t pages, std::int64_t page_size) const;

  // Allocates the routers' counters for a training run in the persistent arena; dense models do not need
  // them.
  RoutingStep make_routing_step(engine::Rank& rank) const;
  // Enqueues the routers' bias updates, which the optimizer does not make, at the end of a step.
  void end_step(turbo::Context& context, const RoutingStep& step) const;

  const ModelConfig& config() const { return config_; }
  int chunks() const { return static_cast<int>(chunks_.size()); }
  // Whether the chunk is the first, or the last, part of the model.
  bool first(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].first; }
  bool last(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].last; }
  // Whether the chunk reads token ids: the first chunk, and chunks that choose experts by a table.
  bool needs_tokens(int chunk) const;
  // Returns the index of the chunk's first block.
  std::int64_t first_block(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].begin; }
  std::int64_t rope_positions() const { return rope_positions_; }

 private:
  // Returns the chunk of this rank that contains the block; -1 if another rank has the block.
  int chunk_with(std::int64_t block) const;
  BlockInputs block_inputs(const ModelInputs& inputs) const;
  // Returns the dropout source of `inputs` with the token indices that the layers of this rank need.
  engine::DropoutSource dropout_source(const BlockInputs& inputs) const;
  // Returns the head's input: hidden states divided by the logits divisor.
  engine::Value before_head(const engine::Value& hidden) const;
  engine::Value loss(const engine::Value& hidden, const engine::Value& labels,
                     const engine::Value& loss_weights) const;

  ModelConfig config_;
  engine::Mesh* mesh_;  // null if the model is on one rank
  engine::SharedVocabulary vocabulary_;
  engine::Parameter* embedding_ = nullptr;
  engine::Parameter* final_norm_ = nullptr;
  engine::Parameter* head_ = nullptr;  // the head; with tied embeddings, the embedding
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<StreamEnds> ends_;  // null if the stream is as wide as hidden states
  struct Chunk {
    std::int64_t begin = 0, end = 0;  // range of blocks in this chunk
    bool first = false, last = false;
  };
  std::vector<Chunk> chunks_;              // chunks of this rank
  std::vector<MultiTokenPrediction> mtp_;  // modules by depth
  Tensor rope_table_, compressed_rope_table_, local_rope_table_;
  std::int64_t rope_positions_ = 0;
};

}  // namespace primus
