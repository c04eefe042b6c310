// A decoder-only language model: embedding, blocks of its family, final norm, head. It may be cut into parts
// of consecutive blocks (lm/model/model_parts.h), of which this rank has some, its chunks; parameters live in
// the rank's ParameterStore.
//
// Where tensor ranks share the layers (ParameterStore::mesh), hidden states and the residual stream are those
// of this rank's tokens, [T/n, hidden]; inputs and losses are of all T tokens, on every rank.
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

// What depth k of multi-token prediction needs for each position t, [T] each: token t + k, the token after it
// to be predicted, and what its loss weighs (0 where one of them lies in another text).
struct MtpInputs {
  engine::Value tokens, labels, loss_weights;
};

// Device inputs of one microbatch, as Values of its tape, each [T].
struct ModelInputs {
  engine::Value tokens = {};  // int32; for the first part of the model, and those that need_tokens()
  // int32, and fp32: what each token's loss weighs in the sum that is trained on (of a training batch: its
  // loss_mask, divided by the mask's sum); for the last part, where there is a loss.
  engine::Value labels = {}, loss_weights = {};
  BlockInputs blocks;          // with no rope table: the model puts its own there
  std::vector<MtpInputs> mtp;  // by depth; for mtp_losses only
};

// Layers that keep the last inputs of each sequence that is read, or a state, keep so many more than they
// need: as many tokens can be forgotten without reading the sequence again.
inline constexpr std::int64_t kSpareTokens = engine::kDeltaRuleSpare;
// Inputs that a convolution of this width keeps of each.
std::int64_t conv_ring(std::int64_t width);

class LanguageModel {
 public:
  // Declares all parameters in `store`; those of other ranks' parts are known there and have no memory. The
  // embedding belongs to the first part, the head to the last, and multi-token prediction too where
  // config.mtp enables it. Where the last part needs the embedding (tied, or for multi-token prediction) and
  // another rank has the first part, both have it (ParameterStore::Group::at_both_ends).
  LanguageModel(const ModelConfig& config, const FamilyRegistry& families, engine::ParameterStore& store,
                const ModelParts& parts = {});

  // Puts the rope table for `positions` positions into the persistent arena. Call once, before forward().
  void allocate_tables(engine::Rank& rank, std::int64_t positions);

  // One chunk: the first part takes tokens, later ones `x` (the residual stream [T, streams * hidden]); the
  // last part returns the hidden states after the final norm, the others the residual stream.
  engine::Value forward(int chunk, const ModelInputs& inputs, engine::Value x = {}) const;
  // All chunks, of a rank that has all parts.
  engine::Value forward(const ModelInputs& inputs) const;
  // The weighted loss per token, [T] fp32 (engine::lm_head_loss).
  engine::Value loss(const engine::Value& hidden, const ModelInputs& inputs) const;
  // As loss(), whose weights `weigh` may change before they are read: it gets -ln p(label) of every token,
  // [T] fp32, and enqueues kernels that write the memory of inputs.loss_weights.
  engine::Value weighed_loss(const engine::Value& hidden, const ModelInputs& inputs,
                             FunctionRef<void(const Tensor& losses)> weigh) const;
  // The same for each depth of multi-token prediction, from what forward() returned.
  std::vector<engine::Value> mtp_losses(const engine::Value& hidden, const ModelInputs& inputs) const;
  // [rows of hidden on all tensor ranks, vocab], in the compute type.
  engine::Value logits(const engine::Value& hidden) const;
  // Some rows of hidden states, for logits() or loss() of few tokens: of the T tokens on all tensor ranks
  // those in `rows`, [n] int32, which are this rank's part of all that are wanted.
  engine::Value select(const engine::Value& hidden, const engine::Value& rows) const;

  // For reading with what was read before at hand: pages for the keys and values of `sequences` sequences of
  // up to `capacity` tokens, in this rank's blocks and of its heads, and their tables, for as long as the
  // phase lasts. `pages` in all, of `page_size` tokens.
  KvCache make_kv_cache(engine::Phase& phase, DType dtype, std::int64_t sequences, std::int64_t capacity,
                        std::int64_t pages, std::int64_t page_size) const;

  // Counters for the routers of a training run, in the persistent arena; of no use to dense models.
  RoutingStep make_routing_step(engine::Rank& rank) const;
  // Enqueues what changes after a step besides what the optimizer does: the routers' biases.
  void end_step(turbo::Context& context, const RoutingStep& step) const;

  const ModelConfig& config() const { return config_; }
  int chunks() const { return static_cast<int>(chunks_.size()); }
  // Whether the chunk is the first, or the last, part of the model.
  bool first(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].first; }
  bool last(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].last; }
  // Whether the chunk reads the tokens themselves: the first one, and those with experts by a table.
  bool needs_tokens(int chunk) const;
  // The number of the chunk's first block.
  std::int64_t first_block(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].begin; }
  std::int64_t rope_positions() const { return rope_positions_; }

 private:
  // The chunk of this rank that has a block; -1: another rank has it.
  int chunk_with(std::int64_t block) const;
  BlockInputs block_inputs(const ModelInputs& inputs) const;
  // With the tokens' numbers as the layers of this rank need them.
  engine::DropoutSource dropout_source(const BlockInputs& inputs) const;
  // The input of the head: hidden states over the divisor of logits.
  engine::Value before_head(const engine::Value& hidden) const;
  engine::Value loss(const engine::Value& hidden, const engine::Value& labels,
                     const engine::Value& loss_weights) const;

  ModelConfig config_;
  engine::Mesh* mesh_;  // null: one rank
  engine::SharedVocabulary vocabulary_;
  engine::Parameter* embedding_ = nullptr;
  engine::Parameter* final_norm_ = nullptr;
  engine::Parameter* head_ = nullptr;  // the embedding when tied
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<StreamEnds> ends_;  // null: the stream is as wide as hidden states
  struct Chunk {
    std::int64_t begin = 0, end = 0;  // its blocks
    bool first = false, last = false;
  };
  std::vector<Chunk> chunks_;              // of this rank
  std::vector<MultiTokenPrediction> mtp_;  // by depth
  Tensor rope_table_, compressed_rope_table_, local_rope_table_;
  std::int64_t rope_positions_ = 0;
};

}  // namespace primus
