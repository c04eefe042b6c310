// Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): pre-norm blocks of grouped-query attention
// with rotary positions, and a SwiGLU feed-forward.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/model/families/families.h"

namespace primus {
namespace {

using engine::Initializer;
using engine::Parameter;
using engine::Value;

class LlamaBlock final : public Block {
 public:
  LlamaBlock(const ModelConfig& c, engine::ParameterStore& store, std::int64_t layer, int chunk)
      : config_(c), layer_(layer) {
    const std::string at = "layers." + std::to_string(layer), hf = "model." + at;
    const Initializer normal = Initializer::normal(c.init_std), one = Initializer::constant(1);
    // Projections into the residual stream start smaller, so that its variance does not grow with depth
    // (GPT-2).
    const Initializer into_residual =
        Initializer::normal(c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers)));
    const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    auto add = [&](const std::string& name, Shape shape, Initializer init,
                   std::vector<engine::CheckpointPart> parts) -> Parameter& {
      for (auto& part : parts) part.name = hf + part.name + ".weight";
      return declare(store, chunk, at + name, shape, init, std::move(parts));
    };
    attention_norm_ = &add(".attention_norm", {c.hidden}, one, {{".input_layernorm", 0, c.hidden}});
    qkv_ =
        &add(".attention.qkv", {q + 2 * kv, c.hidden}, normal,
             {{".self_attn.q_proj", 0, q}, {".self_attn.k_proj", q, kv}, {".self_attn.v_proj", q + kv, kv}});
    out_ = &add(".attention.out", {c.hidden, q}, into_residual, {{".self_attn.o_proj", 0, c.hidden}});
    ffn_norm_ = &add(".ffn_norm", {c.hidden}, one, {{".post_attention_layernorm", 0, c.hidden}});
    gate_up_ = &add(".ffn.gate_up", {2 * c.ffn, c.hidden}, normal,
                    {{".mlp.gate_proj", 0, c.ffn}, {".mlp.up_proj", c.ffn, c.ffn}});
    down_ = &add(".ffn.down", {c.hidden, c.ffn}, into_residual, {{".mlp.down_proj", 0, c.hidden}});
  }

  void forward(engine::Residual& x, const BlockInputs& in) const override {
    engine::BlockScope scope(x, layer_);
    Value h = norm(x, *attention_norm_, config_.norm_epsilon);
    Value qkv = rope(linear(h, *qkv_), in.positions, in.rope_table,
                     {config_.heads + config_.kv_heads, config_.head_dim, config_.rotary_dim()});
    add(x,
        linear(attention(qkv, attention_shape(in), in.cache ? &in.cache->layers[layer_] : nullptr), *out_));

    h = norm(x, *ffn_norm_, config_.norm_epsilon);
    add(x, linear(swiglu(linear(h, *gate_up_)), *down_));
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
  Parameter *attention_norm_, *qkv_, *out_, *ffn_norm_, *gate_up_, *down_;
};

void read(const nlohmann::json& json, ModelConfig&) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  // pretraining_tp > 1 splits the same products into parts: nothing to do with the result.
}

void write(const ModelConfig&, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["hidden_act"] = "silu";
  json["pretraining_tp"] = 1;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  return std::make_unique<LlamaBlock>(config, store, layer, chunk);
}

}  // namespace

Family llama_family() { return {"llama", "LlamaForCausalLM", read, write, make_block}; }

}  // namespace primus
