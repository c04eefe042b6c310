// A decoder-only language model: embedding, blocks of its family, final norm, head. It may be cut into chunks
// of consecutive blocks (pipeline stages); parameters live in the rank's ParameterStore.
//
// Not thread-safe; one per rank.
#pragma once

#include <memory>
#include <vector>

#include "engine/operators.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/model/multi_token_prediction.h"

namespace primus {

// What depth k of multi-token prediction needs for each position t, [T] each: token t + k, the token after it
// to be predicted, and what its loss weighs (0 where one of them lies in another text).
struct FurtherTokens {
  engine::Value tokens, labels, weights;
};

// Device inputs of one microbatch, as Values of its tape. T = batch * sequence.
struct ModelInputs {
  std::int64_t batch = 0, sequence = 0;
  engine::Value tokens = {};       // [T] int32
  engine::Value positions = {};    // [T] int32
  engine::Value labels = {};       // [T] int32; for the loss only
  engine::Value weights = {};      // [T] fp32; for the loss only
  const KvCache* cache = nullptr;  // generation only; batch and sequence then only multiply to T
  engine::Value first_key = {};  // [T] int32: where each token's document begins in its sequence; empty: at 0
  const RoutingStep* routing = nullptr;  // training only
  // [T] int32: each token's number within the step's global batch (turbo::RouterRandom); with `routing`.
  engine::Value token_numbers = {};
  const RoutingTrace* trace = nullptr;  // usually none
  std::vector<FurtherTokens> further;   // by depth; for further_losses only
};

class LanguageModel {
 public:
  // Declares all parameters in `store`. `chunks` parts of (nearly) equal numbers of blocks; the embedding
  // belongs to the first, the head to the last, and multi-token prediction too where config.mtp enables it.
  LanguageModel(const ModelConfig& config, const FamilyRegistry& families, engine::ParameterStore& store,
                int chunks = 1);

  // Puts the rope table for `positions` positions into the persistent arena. Call once, before forward().
  void allocate_tables(engine::Rank& rank, std::int64_t positions);

  // One chunk: its first takes tokens, later ones `x` (the residual stream [T, hidden]); the last returns the
  // hidden states after the final norm, the others the residual stream.
  engine::Value forward(int chunk, const ModelInputs& inputs, engine::Value x = {}) const;
  // All chunks.
  engine::Value forward(const ModelInputs& inputs) const;
  // The weighted loss per token, [T] fp32 (engine::lm_head_loss).
  engine::Value loss(const engine::Value& hidden, const ModelInputs& inputs) const;
  // The same for each depth of multi-token prediction, from what forward() returned.
  std::vector<engine::Value> further_losses(const engine::Value& hidden, const ModelInputs& inputs) const;
  // [rows of hidden, vocab], in the compute type.
  engine::Value logits(const engine::Value& hidden) const;

  // Counters for the routers of a training run, in the persistent arena; of no use to dense models.
  RoutingStep make_routing_step(engine::Rank& rank) const;
  // Enqueues what changes after a step besides what the optimizer does: the routers' biases.
  void end_step(turbo::Context& context, const RoutingStep& step) const;

  const ModelConfig& config() const { return config_; }
  int chunks() const { return static_cast<int>(first_block_.size()) - 1; }
  std::int64_t rope_positions() const { return rope_positions_; }

 private:
  BlockInputs block_inputs(const ModelInputs& inputs) const;

  ModelConfig config_;
  engine::Parameter* embedding_ = nullptr;
  engine::Parameter* final_norm_ = nullptr;
  engine::Parameter* head_ = nullptr;  // the embedding when tied
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::int64_t> first_block_;  // of each chunk, and the end
  std::vector<MultiTokenPrediction> mtp_;  // by depth
  Tensor rope_table_;
  std::int64_t rope_positions_ = 0;
};

// Pages for the keys and values of `sequences` sequences of up to `capacity` tokens, and their tables, in the
// persistent arena. `pages` in all, of `page_size` tokens.
KvCache make_kv_cache(engine::Rank& rank, const ModelConfig& config, DType dtype, std::int64_t sequences,
                      std::int64_t capacity, std::int64_t pages, std::int64_t page_size);

}  // namespace primus
