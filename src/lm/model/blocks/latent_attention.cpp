#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/operators/gates.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/indexer.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/layer_kind.h"
#include "lm/model/rope_table.h"

namespace primus {

// Width of the queries' latent; 0: queries are projected directly.
PRIMUS_MODEL_FIELD(LATENT, std::int64_t, q_rank, 0, q_lora_rank, kShape, "q_lora_rank");
// Width of the latent of keys and values; 0: no latent attention.
PRIMUS_MODEL_FIELD(LATENT, std::int64_t, kv_rank, 0, kv_lora_rank, kShape, "kv_lora_rank");
// Number of columns of queries and keys per head: the columns without rotation, and the rotated columns.
PRIMUS_MODEL_FIELD(LATENT, std::int64_t, nope_dim, 0, qk_head_dim, kShape, "qk_nope_head_dim");
PRIMUS_MODEL_FIELD(LATENT, std::int64_t, rope_dim, 0, qk_pos_emb_head_dim, kShape, "qk_rope_head_dim");
// Number of value columns per head.
PRIMUS_MODEL_FIELD(LATENT, std::int64_t, value_dim, 0, v_head_dim, kShape, "v_head_dim");
// nope: no columns are rotated. output_gate: the attention output is multiplied by sigmoids of a further
// projection.
PRIMUS_MODEL_FIELD(LATENT, bool, nope, false, mla_use_nope, kFixed, "mla_use_nope");
PRIMUS_MODEL_FIELD(LATENT, bool, output_gate, false, mla_use_output_gate, kShape, "mla_use_output_gate");

namespace {

using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;

class LatentAttention final : public Layer {
 public:
  LatentAttention(const ModelConfig& c, const BlockParameters& p, const LatentAttentionOptions& options)
      : group_(p.tensor_group()),
        shape_{.heads = p.tensor().size(c.heads),
               .rank = c.attention.latent.kv_rank,
               .nope_dim = c.attention.latent.nope_dim,
               .rope_dim = c.attention.latent.rope_dim,
               .value_dim = c.attention.latent.value_dim},
        scale_(static_cast<float>(yarn_score_scale(c.rope_scaling) /
                                  std::sqrt(static_cast<double>(shape_.key_dim())))),
        layer_(p.layer()),
        rotates_(!c.attention.latent.nope),
        interleaved_(options.interleaved),
        epsilon_(options.norm_epsilon) {
    const std::int64_t q = c.heads * shape_.key_dim(), q_rank = c.attention.latent.q_rank;
    const auto matrix = [&](const std::string& name, Share share, const std::string& published) {
      const std::int64_t rows = share.placement.is_whole() ? share.shape[0] : share.placement.whole[0];
      return &p.linear(".attention." + name, std::move(share), p.matrix(),
                       {{".self_attn." + published + ".weight", 0, rows}});
    };
    const auto norm = [&](const std::string& name, std::int64_t width, const std::string& published) {
      return &p.add(".attention." + name, {width}, Initializer::constant(1),
                    {{".self_attn." + published + ".weight", 0, width}});
    };
    if (q_rank > 0) {
      q_down_ = matrix("q_down", {{q_rank, c.hidden}, {}}, "q_a_proj");
      q_norm_ = norm("q_norm", q_rank, "q_a_layernorm");
      q_up_ = matrix("q_up", p.rows({q}, q_rank), "q_b_proj");
    } else {
      q_up_ = matrix("q", p.rows({q}, c.hidden), "q_proj");
    }
    const std::string of_kv = ".self_attn.kv_a_proj_with_mqa.weight";
    std::vector<engine::CheckpointPart> kv_parts = {{of_kv, 0, shape_.rank + shape_.rope_dim}};
    if (options.own_rope_key)
      kv_parts = {{of_kv, 0, shape_.rank}, {".self_attn.k_rope.weight", shape_.rank, shape_.rope_dim}};
    kv_down_ = &p.linear(".attention.kv_down", Share{{shape_.rank + shape_.rope_dim, c.hidden}, {}},
                         p.matrix(), std::move(kv_parts));
    kv_norm_ = norm("kv_norm", shape_.rank, "kv_a_layernorm");
    kv_up_ = matrix("kv_up", p.rows({c.heads * shape_.up_dim()}, shape_.rank), "kv_b_proj");
    if (c.attention.latent.output_gate)
      gate_ = matrix("gate", p.rows({c.heads * shape_.value_dim}, c.hidden), "g_proj");
    if (c.attention.indexer.heads > 0) {
      indexer_.emplace(c, p);
      // Sparse attention does not use this weight as one linear layer. Instead, each head is multiplied by
      // the weight before attention and after attention.
      kv_up_->uses.push_back(kv_up_->uses.back());
      kv_up_->linear_of = -1;
    }
    out_ = &p.linear("linear_proj", ".attention.out", p.columns(c.hidden, c.heads * shape_.value_dim),
                     p.into_residual(), {{".self_attn.o_proj.weight", 0, c.hidden}});
  }

  Value forward(const Normed& normed, const BlockInputs& in) const override {
    const Value& h = normed.value();
    if (group_) return parallel(h, in);
    const Value q_latent = q_down_ ? linear(h, *q_down_) : Value();
    const Value joined = linear(h, *kv_down_);
    if (in.cache && !indexer_ && !h.tape().gathers_parameters()) {
      const engine::CachedSequences cache = in.cache->layer(layer_);
      const engine::LatentRows rows{kv_norm_, static_cast<float>(epsilon_), in.rope_table, interleaved_};
      if (takes_latent_rows(joined, rows, cache)) {
        const Value mixed =
            cached_latent_attention(queries(h, q_latent, in), joined, rows, rotates_ ? in.positions : Value(),
                                    *kv_up_, shape_, scale_, cache);
        return linear(times_gate(mixed, h, in), *out_);
      }
    }
    auto [kv_latent, rope_key] = latents(joined, in);
    if (indexer_) return linear(times_gate(sparse(h, q_latent, kv_latent, rope_key, in), h, in), *out_);
    if (in.cache)
      return linear(times_gate(cached(queries(h, q_latent, in), kv_latent, rope_key, in), h, in), *out_);
    const Value mixed = attention(heads(h, q_latent, kv_latent, rope_key, in), attention_shape(in),
                                  {.context = in.context, .first_key = in.first_key});
    return linear(times_gate(mixed, h, in), *out_);
  }

 private:
  // Computes a layer that several ranks share. Every rank computes and keeps only the latents of its own
  // tokens. To compute its heads, the rank gathers the latents of all tokens, in the forward pass and again
  // in the backward pass.
  Value parallel(const Value& h, const BlockInputs& in) const {
    const Value own_q = q_down_ ? linear(h, *q_down_) : h, own_kv = linear(h, *kv_down_);
    if (indexer_) {
      const Value q = gather_tokens(own_q, group_);
      auto [kv_latent, rope_key] = latents(gather_tokens(own_kv, group_), in);
      return scattered_linear(times_gate(sparse(h, q, kv_latent, rope_key, in), h, in), *out_, group_,
                              in.tensor);
    }
    if (in.cache) {
      const Value q = gather_tokens(own_q, group_);
      auto [kv_latent, rope_key] = latents(gather_tokens(own_kv, group_), in);
      const Value mixed = cached(queries(q, q, in), kv_latent, rope_key, in);
      return scattered_linear(times_gate(mixed, h, in), *out_, group_, in.tensor);
    }
    const auto fused = [&] {
      const Value q = gather_tokens(own_q, group_);
      std::optional<engine::ReplayScope> replay(h.tape());
      auto [kv_latent, rope_key] = latents(gather_tokens(own_kv, group_), in);
      replay.reset();
      return q_down_ ? heads({}, q, kv_latent, rope_key, in) : heads(q, {}, kv_latent, rope_key, in);
    };
    const Value mixed =
        attention(fused(), attention_shape(in), {.context = in.context, .first_key = in.first_key});
    return scattered_linear(times_gate(mixed, h, in), *out_, group_, in.tensor);
  }

  // Multiplies the output of this rank's heads by the sigmoids of the output gate; without a gate, returns
  // the output unchanged.
  Value times_gate(const Value& mixed, const Value& h, const BlockInputs& in) const {
    return gate_ ? gated(mixed, gathered_linear(h, *gate_, group_, in.tensor)) : mixed;
  }

  // Returns the output of this rank's heads over the tokens that the indexer selects. Queries are projected
  // into the latent space, so all heads use the same keys. The backward pass recomputes the queries.
  Value sparse(const Value& h, const Value& q_latent, const Value& kv_latent, const Value& rope_key,
               const BlockInputs& in) const {
    using Side = turbo::LatentProject::Side;
    const Value latents = norm(q_latent, *q_norm_, epsilon_);
    const Value selected = indexer_->select(h, latents, in);
    const Value keys = concat(norm(kv_latent, *kv_norm_, epsilon_), rope_key);
    const Value q = rotated(linear(latents, *q_up_), shape_.heads, shape_.key_dim(), in);
    std::optional<engine::ReplayScope> replay(q.tape());
    const Value wide = latent_project(q, *kv_up_, Side::kQueries, shape_);
    replay.reset();
    const turbo::SelectedAttentionShape shape{.heads = shape_.heads,
                                              .key_dim = shape_.rank + shape_.rope_dim,
                                              .value_dim = shape_.rank,
                                              .scale = scale_};
    const Value mixed = in.cache
                            ? selected_cached_attention(wide, keys, selected, shape, in.cache->layer(layer_))
                            : selected_attention(wide, keys, selected, shape);
    return latent_project(mixed, *kv_up_, Side::kValues, shape_);
  }

  // Returns the output of this rank's heads over all tokens whose latents are in the cache.
  Value cached(const Value& q, const Value& kv_latent, const Value& rope_key, const BlockInputs& in) const {
    return cached_latent_attention(q, norm(kv_latent, *kv_norm_, epsilon_), rope_key, *kv_up_, shape_, scale_,
                                   in.cache->layer(layer_));
  }

  // Separates the latent of keys and values from the rotated columns of the key, which all heads share.
  std::pair<Value, Value> latents(const Value& joined, const BlockInputs& in) const {
    auto [latent, rope_key] = split(joined, shape_.rank);
    return {std::move(latent), rotated(std::move(rope_key), 1, shape_.rope_dim, in)};
  }

  // Computes the heads from latents. The backward pass computes the heads again, so only the latents are
  // kept.
  Value heads(const Value& h, const Value& q_latent, const Value& kv_latent, const Value& rope_key,
              const BlockInputs& in) const {
    const Value kept = q_down_ ? Value() : queries(h, q_latent, in);
    const engine::ReplayScope replay(kv_latent.tape());
    const Value q = q_down_ ? queries(h, q_latent, in) : kept;
    return latent_qkv(q, linear(norm(kv_latent, *kv_norm_, epsilon_), *kv_up_), rope_key, shape_);
  }

  Value queries(const Value& h, const Value& latent, const BlockInputs& in) const {
    return rotated(linear(q_down_ ? norm(latent, *q_norm_, epsilon_) : h, *q_up_), shape_.heads,
                   shape_.key_dim(), in);
  }

  // Rotates the last rope_dim columns of each head, if the layer uses positions.
  Value rotated(Value x, std::int64_t heads, std::int64_t head_dim, const BlockInputs& in) const {
    if (!rotates_) return x;
    return rope(std::move(x), in.positions, in.rope_table,
                {.heads = heads,
                 .head_dim = head_dim,
                 .rotary_dim = shape_.rope_dim,
                 .rotary_begin = head_dim - shape_.rope_dim,
                 .interleaved = interleaved_});
  }

  turbo::AttentionShape attention_shape(const BlockInputs& in) const {
    return {.batch = in.batch,
            .seq_q = in.sequence,
            .seq_k = in.sequence,
            .capacity_k = in.sequence,
            .heads = shape_.heads,
            .kv_heads = shape_.heads,
            .head_dim = shape_.key_dim(),
            .value_dim = shape_.value_dim,
            .scale = scale_,
            .causal = true,
            .window = 0};
  }

  comm::Communicator* group_;  // the ranks over which the heads are divided
  turbo::LatentShape shape_;   // shape of this rank's heads
  float scale_;
  std::int64_t layer_;
  bool rotates_, interleaved_;
  double epsilon_;  // epsilon of the latents' norms
  Parameter *q_down_ = nullptr, *q_norm_ = nullptr, *q_up_ = nullptr;
  Parameter *kv_down_ = nullptr, *kv_norm_ = nullptr, *kv_up_ = nullptr, *out_ = nullptr;
  Parameter* gate_ = nullptr;       // null if there is no output gate
  std::optional<Indexer> indexer_;  // set for sparse attention
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  const LatentConfig& latent = c.attention.latent;
  const IndexerConfig& indexer = c.attention.indexer;
  const std::int64_t queries = c.heads * (latent.nope_dim + latent.rope_dim),
                     values = c.heads * latent.value_dim;
  std::vector<LayerProduct> all;
  if (latent.q_rank > 0) {
    all.push_back({"q down", latent.q_rank, c.hidden});
    all.push_back({"q up", queries, latent.q_rank});
  } else {
    all.push_back({"q", queries, c.hidden});
  }
  all.push_back({"kv down", latent.kv_rank + latent.rope_dim, c.hidden});
  if (indexer.heads > 0) {
    all.push_back({.what = "indexer q",
                   .out = indexer.heads * indexer.head_dim,
                   .in = latent.q_rank,
                   .trained = false});
    all.push_back({.what = "indexer k", .out = indexer.head_dim, .in = c.hidden, .trained = false});
    all.push_back({.what = "indexer weights", .out = indexer.heads, .in = c.hidden, .trained = false});
  }
  all.push_back({"kv up", c.heads * latent.nope_dim + values, latent.kv_rank});
  if (latent.output_gate) all.push_back({"attention gate", values, c.hidden});
  all.push_back({.what = "attention out", .out = c.hidden, .in = values, .module = "linear_proj"});
  return all;
}

double mixing(const ModelConfig& c, std::int64_t layer, double length) {
  const double maximum = static_cast<double>(c.attention.indexer.top_k);
  const double keys = maximum > 0 ? keys_up_to(maximum, length) : keys_per_query(c, layer, length);
  return static_cast<double>(c.heads * (c.head_dim + c.attention.latent.value_dim)) * keys;
}

double selection(const ModelConfig& c, double length) {
  const IndexerConfig& indexer = c.attention.indexer;
  return static_cast<double>(indexer.heads * indexer.head_dim) * length / 2;
}

std::optional<MeshMismatch> context_mismatch(const ModelConfig& c, const engine::MeshShape&, std::int64_t) {
  if (c.attention.indexer.heads == 0) return std::nullopt;
  return MeshMismatch{"context_parallel_size",
                      "sparse attention (dsa_indexer_topk) does not support context parallelism, because it "
                      "selects among all tokens of a sequence",
                      "set context_parallel_size to 1, and use tensor_model_parallel_size instead"};
}

void make_cache(const ModelConfig& c, const CacheRequest& request, engine::Phase& phase,
                engine::KvCacheLayer& entry) {
  const LatentConfig& latent = c.attention.latent;
  entry.k = phase.tensor(request.dtype, {request.pages, request.page_size, latent.kv_rank + latent.rope_dim});
  if (const IndexerConfig& indexer = c.attention.indexer; indexer.heads > 0)
    entry.index = phase.tensor(request.dtype, {request.pages, request.page_size, indexer.head_dim});
}

double bytes_read(const ModelConfig& c, std::int64_t layer, std::int64_t length, DType dtype) {
  const LatentConfig& latent = c.attention.latent;
  const IndexerConfig& indexer = c.attention.indexer;
  std::int64_t seen = keys_of_next(c, layer, length), elements = 0;
  if (indexer.heads > 0) {
    elements = seen * indexer.head_dim;
    seen = std::min(seen, indexer.top_k);
  }
  return static_cast<double>((elements + seen * (latent.kv_rank + latent.rope_dim)) * size_of(dtype));
}

constexpr auto kKeys =
    std::to_array<std::string_view>({"q_lora_rank", "qk_pos_emb_head_dim", "kv_lora_rank", "qk_head_dim",
                                     "v_head_dim", "mla_use_nope", "mla_use_output_gate"});

std::string summary(const ModelConfig& c) {
  const LatentConfig& latent = c.attention.latent;
  const IndexerConfig& indexer = c.attention.indexer;
  return fmt::format("{} heads of {}+{}, values {}, latent {}{}{}", c.heads, latent.nope_dim, latent.rope_dim,
                     latent.value_dim, latent.kv_rank,
                     latent.q_rank > 0 ? fmt::format(", of queries {}", latent.q_rank) : "",
                     indexer.heads > 0 ? fmt::format(", to {} tokens that {} heads of {} select",
                                                     indexer.top_k, indexer.heads, indexer.head_dim)
                                       : "");
}

}  // namespace

std::unique_ptr<Layer> latent_attention(const ModelConfig& config, const BlockParameters& parameters,
                                        const LatentAttentionOptions& options) {
  return std::make_unique<LatentAttention>(config, parameters, options);
}

extern const LayerKind kLatentAttention{.branch = LayerKind::Branch::kAttention,
                                        .keeps = Keeps::kLatents,
                                        .products = products,
                                        .mixing = mixing,
                                        .selection = selection,
                                        .context_mismatch = context_mismatch,
                                        .make_cache = make_cache,
                                        .bytes_read = bytes_read,
                                        .keys = kKeys,
                                        .asked_for = "multi_latent_attention",
                                        .summary = summary};

}  // namespace primus
