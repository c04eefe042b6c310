// A decoder-only language model: embedding, blocks of its family, final norm, and head. For pipeline
// parallelism, the model is cut into parts of consecutive blocks (lm/model/model_parts.h). The parts that
// this rank has are its chunks. The parameters are in the rank's ParameterStore.
//
// If the layers are divided over tensor ranks (ParameterStore::mesh), hidden states and residual stream
// contain only the tokens of this rank, [T/n, hidden]. Inputs and losses contain all T tokens on every rank.
//
// Not thread-safe; one per rank.
#pragma once

#include <memory>
#include <vector>

#include "base/system/thread_pool.h"
#include "engine/operators/delta_rule.h"
#include "engine/parallel/parallel_operators.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/phase.h"
#include "engine/runtime/rank.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/model/model_parts.h"
#include "lm/model/multi_token_prediction.h"

namespace primus {

// Inputs for depth k of multi-token prediction, each [T]. At position t, the input is token t + k, and the
// label is token t + k + 1. The third tensor is the weight of the loss. The weight is 0 if the input or the
// label belongs to another document than token t.
struct MtpInputs {
  engine::Value tokens, labels, loss_weights;
};

// Inputs of one microbatch on the device, as Values of its tape, each [T].
struct ModelInputs {
  engine::Value tokens = {};  // int32 token ids; required by the first part and by chunks with needs_tokens()
  // int32 labels, and the fp32 weight of each token in the loss. In training, the weight is loss_mask / (sum
  // of loss_mask). Required by the last part if a loss is computed.
  engine::Value labels = {}, loss_weights = {};
  BlockInputs blocks;          // inputs of blocks; the model adds the rope tables
  std::vector<MtpInputs> mtp;  // inputs of each depth; used only by mtp_losses
};

// Convolutions and linear attention keep recent inputs or states of each sequence in a ring. This constant is
// the number of spare entries in the ring. Up to this number of tokens can be dropped from the end of a
// sequence without reading the sequence again.
inline constexpr std::int64_t kSpareTokens = engine::kDeltaRuleSpare;
// Returns the number of ring entries for a convolution of this width.
std::int64_t conv_ring(std::int64_t width);

// The values that LanguageModel::weighed_loss computes for `weigh` in addition to -ln p(label).
struct TokenNeeds {
  bool statistics = false;       // TokenValues::entropies and collisions
  bool entropy_weights = false;  // TokenValues::entropy_weights
};

// Values of every token, each [T] fp32.
struct TokenValues {
  Tensor losses;  // -ln p(label); for a model with scores, the scores
  // The entropy -sum p ln p of the token's distribution p, and the sum of p^2; absent unless requested.
  Tensor entropies, collisions;
  // The weight of the token's entropy in the loss; `weigh` may write it. Absent unless requested.
  Tensor entropy_weights;
};

class LanguageModel {
 public:
  // Declares all parameters in `store`; parameters that belong only to other ranks get no memory. The
  // embedding belongs to the first part; the head and multi-token prediction (config.mtp) belong to the last
  // part. The last part also needs the embedding for tied embeddings or multi-token prediction. If the first
  // and last part are on different ranks, both ranks then hold the embedding
  // (ParameterStore::Group::at_both_ends).
  LanguageModel(const ModelConfig& config, const FamilyRegistry& families, engine::ParameterStore& store,
                const ModelParts& parts = {});

  // Allocates the rope tables for `positions` positions in the persistent arena. Call once, before forward().
  void allocate_tables(engine::Rank& rank, std::int64_t positions);

  // Runs one chunk. The first part of the model reads the tokens; later parts read `x`, the residual stream
  // [T, streams * hidden]. The last part returns the hidden states after the final norm; the other parts
  // return the residual stream.
  engine::Value forward(int chunk, const ModelInputs& inputs, engine::Value x = {}) const;
  // Runs all chunks, on a rank that has all parts.
  engine::Value forward(const ModelInputs& inputs) const;
  // Returns the loss per token, multiplied by its weight: [T] fp32 (engine::lm_head_loss). For a model with
  // scores (ModelConfig::scores), returns the score of each token; its weight is the gradient of the loss
  // with respect to the score (engine::score_head).
  engine::Value loss(const engine::Value& hidden, const ModelInputs& inputs) const;
  // Like loss(), but first calls `weigh`, which may change the loss weights. `weigh` enqueues kernels that
  // read the values and write the memory of inputs.loss_weights and of TokenValues::entropy_weights (0 before
  // the call).
  engine::Value weighed_loss(const engine::Value& hidden, const ModelInputs& inputs, const TokenNeeds& needs,
                             FunctionRef<void(const TokenValues& tokens)> weigh) const;
  // Like loss(), but the model learns the distribution of a teacher with the same vocabulary
  // (engine::distilled_loss). The teacher's operands are its head_inputs() and head(). Only for training.
  engine::Value distilled_loss(const engine::Value& hidden, const ModelInputs& inputs,
                               const engine::Teacher& teacher) const;
  // Returns the inputs of the head for the tokens of all tensor ranks, [T, hidden]. Not differentiable.
  engine::Value head_inputs(const engine::Value& hidden) const;
  // Returns this rank's part of the head; null on ranks without the last part of the model.
  const engine::Parameter* head() const { return head_; }
  // Returns the entropy -sum p ln p of each token's distribution p over the vocabulary: [T] fp32. Not
  // differentiable. The model must not have scores.
  engine::Value entropies(const engine::Value& hidden, const ModelInputs& inputs) const;
  // Returns the loss per token for each depth of multi-token prediction. `hidden` is the result of forward().
  std::vector<engine::Value> mtp_losses(const engine::Value& hidden, const ModelInputs& inputs) const;
  // Returns the logits of a language model in the compute type, [rows of `hidden` on all tensor ranks,
  // vocab].
  engine::Value logits(const engine::Value& hidden) const;
  // Returns the fp32 logits from which loss() computes losses. If has_loss_logits() is false, no rank has all
  // columns of these logits, or loss() changes them.
  bool has_loss_logits() const;
  engine::Value loss_logits(const engine::Value& hidden) const;
  // Selects rows of the hidden states, so that logits() or loss() computes only these rows. `rows` is [n]
  // int32: indices into the T tokens of all tensor ranks. Each rank passes its own slice of the list of
  // requested rows.
  engine::Value select(const engine::Value& hidden, const engine::Value& rows) const;

  // Allocates a KV cache for incremental decoding: pages for `sequences` sequences of up to `capacity`
  // tokens, for this rank's blocks and heads, and page tables. The cache has `pages` pages of `page_size`
  // tokens. The cache's memory is valid until the phase ends.
  KvCache make_kv_cache(engine::Phase& phase, DType dtype, std::int64_t sequences, std::int64_t capacity,
                        std::int64_t pages, std::int64_t page_size) const;

  // Allocates the counters of routers for a training run, in the persistent arena. Models without experts do
  // not need them.
  RoutingStep make_routing_step(engine::Rank& rank) const;
  // At the end of a step, enqueues the updates of the routers' biases, which the optimizer does not make.
  void end_step(turbo::Context& context, const RoutingStep& step) const;

  const ModelConfig& config() const { return config_; }
  int chunks() const { return static_cast<int>(chunks_.size()); }
  // Return whether the chunk is the first part, or the last part, of the model.
  bool first(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].first; }
  bool last(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].last; }
  // Returns whether the chunk reads token ids: true for the first part of the model, and for chunks that
  // choose experts by a table.
  bool needs_tokens(int chunk) const;
  // Returns the index of the chunk's first block.
  std::int64_t first_block(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].begin; }

 private:
  void add_embedding_adapter(engine::ParameterStore& store, std::string_view published, bool here);
  void freeze_base(engine::ParameterStore& store) const;
  // Returns the chunk of this rank that contains block `block`; -1 if the block is on another rank.
  int chunk_with(std::int64_t block) const;
  BlockInputs block_inputs(const ModelInputs& inputs) const;
  // Returns the dropout source of `inputs`, with the token indices that the layers on this rank need.
  engine::DropoutSource dropout_source(const BlockInputs& inputs) const;
  // Returns the input of the head: hidden states divided by the config's divisor of logits.
  engine::Value before_head(const engine::Value& hidden) const;
  engine::Value loss(const engine::Value& hidden, const engine::Value& labels,
                     const engine::Value& loss_weights) const;

  ModelConfig config_;
  engine::Mesh* mesh_;  // null if the model is on one rank
  engine::SharedVocabulary vocabulary_;
  engine::Parameter* embedding_ = nullptr;
  engine::Parameter* final_norm_ = nullptr;
  engine::Parameter* head_ = nullptr;  // head parameter; if embeddings are tied, this is the embedding
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<StreamEnds> ends_;  // null if the residual stream is as wide as the hidden states
  struct Chunk {
    std::int64_t begin = 0, end = 0;  // the chunk consists of blocks [begin, end)
    bool first = false, last = false;
  };
  std::vector<Chunk> chunks_;              // chunks of this rank
  std::vector<MultiTokenPrediction> mtp_;  // multi-token prediction modules by depth
  Tensor rope_table_, compressed_rope_table_, local_rope_table_;
};

}  // namespace primus
