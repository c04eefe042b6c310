#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/operators/few_tokens.h"
#include "engine/operators/gates.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/layer_kind.h"

namespace primus {

// Size in positions of the chunks in local layers; 0: no chunks.
PRIMUS_MODEL_FIELD(ATTENTION, std::int64_t, chunk, 0, attention_chunk_size, kFixed, "attention_chunk_size");
// Queries are scaled by their position (turbo/position_scale) in layers without rotary positions (Llama 4),
// or in all layers (Ministral 3); attn_scale = 0: no scaling.
PRIMUS_MODEL_FIELD(ATTENTION, std::int64_t, floor_scale, 8192, attention_temperature_floor, kFixed,
                   "floor_scale");
PRIMUS_MODEL_FIELD(ATTENTION, double, attn_scale, 0, attention_temperature_scale, kFixed,
                   "attn_scale attn_temperature_tuning llama_4_scaling_beta");
// Factor of attention scores; 0: 1 / sqrt(head_dim).
PRIMUS_MODEL_FIELD(ATTENTION, double, score_scale, 0, attention_multiplier, kFixed,
                   "attention_multiplier query_pre_attn_scalar");
// Limit of soft capping for attention scores (turbo/attention/attention.h); 0: no capping.
PRIMUS_MODEL_FIELD(ATTENTION, double, score_cap, 0, attn_logit_softcapping, kFixed, "attn_logit_softcapping");
// Rotary base of local layers, whose frequencies are not stretched; 0: the base of the other layers.
PRIMUS_MODEL_FIELD(ATTENTION, double, local_theta, 0, rotary_base_local, kFixed, "rope_local_base_freq");

namespace {

using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;
using HeadNorm = SelfAttentionOptions::HeadNorm;

class SelfAttention final : public Layer {
 public:
  SelfAttention(const ModelConfig& c, const BlockParameters& p, const SelfAttentionOptions& options)
      : group_(p.tensor_group()),
        heads_(p.tensor().size(c.heads)),
        kv_heads_(p.tensor().size(c.kv_heads)),
        head_dim_(c.head_dim),
        rotary_dim_(c.rotary_dim()),
        score_scale_(c.attention.score_scale),
        epsilon_(c.norm_epsilon),
        layer_(p.layer()),
        options_(options) {
    const std::int64_t q = c.heads * head_dim_, kv = c.kv_heads * head_dim_;
    // number of query rows, including the gates' rows
    const std::int64_t of_q = options.output_gate ? 2 * q : q;
    if (options.output_gate && options.qkv_bias)
      throw std::logic_error("attention with an output gate does not support biases");
    const auto parts = [&](const std::string& kind) -> std::vector<engine::CheckpointPart> {
      if (options.fused_qkv) return {{".self_attn.qkv_proj." + kind, 0, of_q + 2 * kv}};
      return {{".self_attn.q_proj." + kind, 0, of_q},
              {".self_attn.k_proj." + kind, of_q, kv},
              {".self_attn.v_proj." + kind, of_q + kv, kv}};
    };
    qkv_ = &p.linear("linear_qkv", ".attention.qkv", p.rows({of_q, kv, kv}, c.hidden), p.matrix(),
                     parts("weight"));
    if (options.qkv_bias) {
      qkv_bias_ = &p.add(".attention.qkv_bias", p.rows({q, kv, kv}), Initializer::constant(0), parts("bias"));
    }
    const auto norm_name = [&](const std::string& of) {
      return ".self_attn." + of + "_" + std::string(options.norm_name) + ".weight";
    };
    if (options.head_norm == HeadNorm::kBeforeRope) {
      head_norm_ = &p.norm(".attention.head_norm", 2 * head_dim_,
                           {{norm_name("q"), 0, head_dim_}, {norm_name("k"), head_dim_, head_dim_}});
      head_norm_->vector_decay = engine::VectorDecay::kOfHeadNorm;
    }
    if (options.head_norm == HeadNorm::kWhole) {
      query_norm_ = &p.norm(".attention.query_norm", q, {{norm_name("q"), 0, q}});
      key_norm_ = &p.norm(".attention.key_norm", kv, {{norm_name("k"), 0, kv}});
      query_norm_->vector_decay = key_norm_->vector_decay = engine::VectorDecay::kOfHeadNorm;
    }
    if (options.sinks) {
      sinks_ = &p.add(".attention.sinks", p.rows({c.heads}), Initializer::constant(0),
                      {{".self_attn.sinks", 0, c.heads}});
    }
    const std::string out = ".self_attn." + std::string(options.out_name);
    out_ = &p.linear("linear_proj", ".attention.out", p.columns(c.hidden, q), p.into_residual(),
                     {{out + ".weight", 0, c.hidden}});
    if (options.out_bias) {
      out_bias_ =
          &p.add(".attention.out_bias", {c.hidden}, Initializer::constant(0), {{out + ".bias", 0, c.hidden}});
    }
  }

  Value forward(const Normed& h, const BlockInputs& in) const override {
    const turbo::HeadNormShape normed{heads_, kv_heads_, head_dim_};
    const engine::RopeShape rotation{.heads = heads_ + kv_heads_,
                                     .head_dim = head_dim_,
                                     .rotary_dim = rotary_dim_,
                                     .rotary_begin = 0,
                                     .interleaved = options_.interleaved};
    const bool rotates_products =
        options_.rope && !group_ && !head_norm_ && !query_norm_ && !options_.output_gate;
    const Tensor& table = options_.local_rope ? in.local_rope_table : in.rope_table;
    Value qkv, gate;
    if (group_) {
      qkv = gathered_linear(h.value(), *qkv_, group_, in.tensor);
      if (qkv_bias_) qkv = add_bias(std::move(qkv), *qkv_bias_);
    } else if (rotates_products) {
      qkv = h.rotated_linear(*qkv_, qkv_bias_, in.positions, table, rotation);
    } else {
      qkv = h.linear(*qkv_, qkv_bias_);
    }
    if (options_.output_gate) {
      auto apart = split_columns(std::exchange(qkv, {}), queries_and_gates());
      qkv = std::move(apart[0]), gate = std::move(apart[1]);
    }
    if (query_norm_) qkv = with_normed_queries_and_keys(qkv);
    const bool decoding = in.cache && !qkv.tape().gathers_parameters();
    if (head_norm_ && options_.rope && decoding) {
      qkv = normed_rope(qkv, *head_norm_, normed, epsilon_, in.positions, table, rotation);
    } else {
      if (head_norm_) qkv = head_norm(qkv, head_norm_, normed, epsilon_);
      if (options_.rope && !rotates_products) qkv = rope(std::move(qkv), in.positions, table, rotation);
    }
    if (options_.head_norm == HeadNorm::kAfterRope) qkv = head_norm(qkv, nullptr, normed, epsilon_);
    if (options_.attn_scale != 0) {
      qkv = scale_by_position(std::move(qkv), in.positions,
                              {.cols = heads_ * head_dim_,
                               .floor_scale = static_cast<float>(options_.floor_scale),
                               .attn_scale = static_cast<float>(options_.attn_scale),
                               .first = options_.first_scaled});
    }
    Value mixed = attention(qkv, shape(in),
                            {.cache = in.cache ? in.cache->layer(layer_) : engine::CachedSequences(),
                             .context = in.context,
                             .first_key = in.first_key,
                             .sinks = sinks_});
    if (gate) mixed = gated(mixed, gate);
    Value out = scattered_linear(mixed, *out_, group_, in.tensor);
    return out_bias_ ? add_bias(std::move(out), *out_bias_) : out;
  }

 private:
  turbo::AttentionShape shape(const BlockInputs& in) const {
    return {.batch = in.batch,
            .seq_q = in.sequence,
            .seq_k = in.sequence,
            .capacity_k = in.sequence,
            .heads = heads_,
            .kv_heads = kv_heads_,
            .head_dim = head_dim_,
            .value_dim = head_dim_,
            .scale = static_cast<float>(score_scale_ > 0 ? score_scale_
                                                         : 1.0 / std::sqrt(static_cast<double>(head_dim_))),
            .causal = true,
            .window = options_.window,
            .chunk = options_.chunk,
            .score_cap = static_cast<float>(options_.score_cap)};
  }

  Value with_normed_queries_and_keys(const Value& qkv) const {
    const auto [queries, rest] = split(qkv, heads_ * head_dim_);
    const auto [keys, values] = split(rest, kv_heads_ * head_dim_);
    return concat(concat(norm(queries, *query_norm_, epsilon_), norm(keys, *key_norm_, epsilon_)), values);
  }

  // The projection's columns are the query and the gate of each head, followed by all keys and values. This
  // function splits the columns into the inputs of attention and the gates.
  std::vector<engine::ColumnRuns> queries_and_gates() const {
    const auto dim = static_cast<std::int32_t>(head_dim_), heads = static_cast<std::int32_t>(heads_);
    const auto keys = static_cast<std::int32_t>(2 * kv_heads_ * head_dim_);
    const turbo::ColumnRun of_heads{
        .from = 0, .to = 0, .groups = heads, .columns = dim, .from_stride = 2 * dim, .to_stride = dim};
    turbo::ColumnRun gates = of_heads;
    gates.from = dim;
    return {{of_heads, {.from = 2 * heads * dim, .to = heads * dim, .groups = 1, .columns = keys}}, {gates}};
  }

  comm::Communicator* group_;      // the ranks over which the heads are divided
  std::int64_t heads_, kv_heads_;  // numbers of query heads and of key/value heads on this rank
  std::int64_t head_dim_, rotary_dim_;
  double score_scale_;  // factor of scores; 0: 1 / sqrt(head_dim)
  double epsilon_;
  std::int64_t layer_;
  SelfAttentionOptions options_;
  Parameter *qkv_ = nullptr, *qkv_bias_ = nullptr, *head_norm_ = nullptr, *sinks_ = nullptr;
  Parameter *query_norm_ = nullptr, *key_norm_ = nullptr;  // norms over all heads together
  Parameter *out_ = nullptr, *out_bias_ = nullptr;
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  const std::int64_t queries = c.attention.output_gate ? 2 * c.heads : c.heads;
  return {
      {.what = "qkv", .out = (queries + 2 * c.kv_heads) * c.head_dim, .in = c.hidden, .module = "linear_qkv"},
      {.what = "attention out", .out = c.hidden, .in = c.heads * c.head_dim, .module = "linear_proj"}};
}

double mixing(const ModelConfig& c, std::int64_t layer, double length) {
  return static_cast<double>(2 * c.heads * c.head_dim) * keys_per_query(c, layer, length);
}

std::vector<SharedExtent> shared(const ModelConfig& c) {
  return {{c.kv_heads, "key/value heads (num_query_groups)"}};
}

void make_cache(const ModelConfig& c, const CacheRequest& request, engine::Phase& phase,
                engine::KvCacheLayer& entry) {
  const Shape shape{request.pages, request.page_size, c.kv_heads / request.tensor_ranks * c.head_dim};
  entry.k = phase.tensor(request.dtype, shape);
  entry.v = phase.tensor(request.dtype, shape);
}

double bytes_read(const ModelConfig& c, std::int64_t layer, std::int64_t length, DType dtype) {
  return static_cast<double>(keys_of_next(c, layer, length) * 2 * c.kv_heads * c.head_dim * size_of(dtype));
}

std::string summary(const ModelConfig& c) {
  std::string text = fmt::format("{} heads of {}, {} key/value", c.heads, c.head_dim, c.kv_heads);
  const AttentionConfig& a = c.attention;
  const std::size_t local = c.local_layers().size();
  if (a.window > 0) text += fmt::format(", window {} in {} layers", a.window, local);
  if (a.chunk > 0) text += fmt::format(", chunks of {} in {} layers", a.chunk, local);
  return text;
}

}  // namespace

SelfAttentionOptions attention_options(const ModelConfig& config, std::int64_t layer) {
  const AttentionConfig& a = config.attention;
  SelfAttentionOptions options;
  const LayerSpec& spec = config.spec(layer);
  options.rope = spec.rope;
  options.output_gate = a.output_gate;
  options.score_cap = a.score_cap;
  if (spec.local) {
    options.local_rope = a.local_theta > 0;
    options.window = a.window;
    options.chunk = a.chunk;
  }
  return options;
}

std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters,
                                      const SelfAttentionOptions& options) {
  return std::make_unique<SelfAttention>(config, parameters, options);
}

extern const LayerKind kSelfAttention{.branch = LayerKind::Branch::kAttention,
                                      .keeps = Keeps::kKeys,
                                      .batch_invariant = true,
                                      .products = products,
                                      .mixing = mixing,
                                      .shared_by_tensor_ranks = shared,
                                      .make_cache = make_cache,
                                      .bytes_read = bytes_read,
                                      .summary = summary};

}  // namespace primus
