#include "lm/model/blocks/layers.h"

#include <cmath>

namespace primus {
namespace {

using engine::Parameter;
using engine::Value;

class SelfAttention final : public Layer {
 public:
  SelfAttention(const ModelConfig& c, const BlockParameters& p) : config_(c), layer_(p.layer()) {
    const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    qkv_ = &p.add(".attention.qkv", {q + 2 * kv, c.hidden}, p.matrix(),
                  {{".self_attn.q_proj.weight", 0, q},
                   {".self_attn.k_proj.weight", q, kv},
                   {".self_attn.v_proj.weight", q + kv, kv}});
    out_ = &p.add(".attention.out", {c.hidden, q}, p.into_residual(),
                  {{".self_attn.o_proj.weight", 0, c.hidden}});
  }

  Value forward(const Value& h, const BlockInputs& in) const override {
    Value qkv = rope(linear(h, *qkv_), in.positions, in.rope_table,
                     {config_.heads + config_.kv_heads, config_.head_dim, config_.rotary_dim()});
    return linear(
        attention(qkv, attention_shape(in),
                  {.cache = in.cache ? &in.cache->layers[layer_] : nullptr, .first_key = in.first_key}),
        *out_);
  }

 private:
  turbo::AttentionShape attention_shape(const BlockInputs& in) const {
    return {.batch = in.batch,
            .seq_q = in.sequence,
            .seq_k = in.sequence,
            .capacity_k = in.sequence,
            .heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .head_dim = config_.head_dim,
            .value_dim = config_.head_dim,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
            .causal = true,
            .window = 0};
  }

  ModelConfig config_;
  std::int64_t layer_;
  Parameter *qkv_, *out_;
};

class FeedForward final : public Layer {
 public:
  FeedForward(const ModelConfig& c, const BlockParameters& p, std::int64_t ffn, const std::string& name,
              const std::string& published)
      : gate_up_(
            p.add(name + ".gate_up", {2 * ffn, c.hidden}, p.matrix(),
                  {{published + ".gate_proj.weight", 0, ffn}, {published + ".up_proj.weight", ffn, ffn}})),
        down_(p.add(name + ".down", {c.hidden, ffn}, p.into_residual(),
                    {{published + ".down_proj.weight", 0, c.hidden}})) {}

  Value forward(const Value& h, const BlockInputs&) const override {
    return linear(swiglu(linear(h, gate_up_)), down_);
  }

 private:
  Parameter &gate_up_, &down_;
};

}  // namespace

std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters) {
  return std::make_unique<SelfAttention>(config, parameters);
}

std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name, const std::string& published) {
  return std::make_unique<FeedForward>(config, parameters, ffn, name, published);
}

void PreNormBlock::forward(engine::Residual& x, const BlockInputs& in) const {
  engine::BlockScope scope(x, layer_);
  add(x, attention_->forward(norm(x, attention_norm_, epsilon_), in));
  add(x, feed_forward_->forward(norm(x, ffn_norm_, epsilon_), in));
}

}  // namespace primus
