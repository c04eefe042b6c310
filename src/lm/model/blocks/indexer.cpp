#include "lm/model/blocks/indexer.h"

#include <algorithm>

#include "engine/parallel/tensor_parallel.h"

namespace primus {

// Number of heads of the indexer that selects tokens for sparse attention; 0: full attention.
PRIMUS_MODEL_FIELD(INDEXER, std::int64_t, heads, 0, dsa_indexer_n_heads, kShape, "index_n_heads");
PRIMUS_MODEL_FIELD(INDEXER, std::int64_t, head_dim, 0, dsa_indexer_head_dim, kShape, "index_head_dim");
// Number of tokens that the indexer selects for each query.
PRIMUS_MODEL_FIELD(INDEXER, std::int64_t, top_k, 0, dsa_indexer_topk, kFixed, "index_topk");

using engine::Initializer;
using engine::Parameter;
using engine::Value;

namespace {

constexpr double kNormEpsilon = 1e-6;  // epsilon of the key norm in the published models

}  // namespace

Indexer::Indexer(const ModelConfig& c, const BlockParameters& p)
    : group_(p.tensor_group()),
      config_(c.attention.indexer),
      rope_dim_(c.attention.latent.rope_dim),
      layer_(p.layer()) {
  const auto add = [&](const std::string& name, Shape shape, const Initializer& initializer,
                       const std::string& published) {
    const std::int64_t rows = shape[0];
    Parameter& parameter = p.add(".attention.indexer." + name, shape, initializer,
                                 {{".self_attn.indexer." + published, 0, rows}});
    parameter.trainable = false;
    return &parameter;
  };
  queries_ =
      add("q", {config_.heads * config_.head_dim, c.attention.latent.q_rank}, p.matrix(), "wq_b.weight");
  keys_ = add("k", {config_.head_dim, c.hidden}, p.matrix(), "wk.weight");
  norm_ = add("k_norm", {config_.head_dim}, Initializer::constant(1), "k_norm.weight");
  norm_bias_ = add("k_norm_bias", {config_.head_dim}, Initializer::constant(0), "k_norm.bias");
  weights_ = add("weights", {config_.heads, c.hidden}, p.matrix(), "weights_proj.weight");
}

Value Indexer::select(const Value& h, const Value& latents, const BlockInputs& in) const {
  const Value k =
      rotated(gather_tokens(layer_norm(linear(h, *keys_), *norm_, *norm_bias_, kNormEpsilon), group_), 1, in);
  const Value w = gather_tokens(linear(h, *weights_), group_);
  const Value q = rotated(linear(latents, *queries_), config_.heads, in);
  const turbo::IndexerShape shape{.batch = in.batch,
                                  .seq_q = in.sequence,
                                  .seq_k = in.sequence,
                                  .heads = config_.heads,
                                  .head_dim = config_.head_dim,
                                  .top_k = in.cache ? config_.top_k : std::min(config_.top_k, in.sequence)};
  if (in.cache) return select_cached_keys(q, k, w, shape, in.cache->layer(layer_));
  return select_keys(q, k, w, shape, in.first_key);
}

// Rotates the first rope_dim_ columns of each head. The other columns do not depend on the position.
Value Indexer::rotated(Value x, std::int64_t heads, const BlockInputs& in) const {
  return rope(std::move(x), in.positions, in.rope_table,
              {.heads = heads,
               .head_dim = config_.head_dim,
               .rotary_dim = rope_dim_,
               .interleaved = config_.interleaved});
}

}  // namespace primus
