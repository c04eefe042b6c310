// The parts that blocks are composed of, and the pre-norm block itself.
//
//   x = x + attention(norm(x));  x = x + feed_forward(norm(x))
#pragma once

#include <memory>

#include "engine/operators.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// One branch of a block: takes the normed residual stream and gives what is added to it, both [T, hidden].
// Stateless but for its parameters.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual engine::Value forward(const engine::Value& h, const BlockInputs& inputs) const = 0;
};

// Grouped-query attention with rotary positions: self_attn.{q,k,v,o}_proj.
std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters);

// SwiGLU of width `ffn`: <published>.{gate,up,down}_proj.
std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name = ".ffn",
                                    const std::string& published = ".mlp");

class PreNormBlock final : public Block {
 public:
  // Makes the parts in the order of the forward pass: which parameter is which in the store depends on it.
  template <class MakeAttention, class MakeFeedForward>
  PreNormBlock(const ModelConfig& config, const BlockParameters& parameters, MakeAttention make_attention,
               MakeFeedForward make_feed_forward)
      : layer_(parameters.layer()),
        epsilon_(config.norm_epsilon),
        attention_norm_(parameters.norm(".attention_norm", ".input_layernorm.weight")),
        attention_(make_attention()),
        ffn_norm_(parameters.norm(".ffn_norm", ".post_attention_layernorm.weight")),
        feed_forward_(make_feed_forward()) {}

  void forward(engine::Residual& x, const BlockInputs& inputs) const override;

 private:
  std::int64_t layer_;
  double epsilon_;
  engine::Parameter& attention_norm_;
  std::unique_ptr<Layer> attention_;
  engine::Parameter& ffn_norm_;
  std::unique_ptr<Layer> feed_forward_;
};

}  // namespace primus
