// Attention residuals (Kimi K3): blocks whose branches read a mixture of the residual stream and its
// checkpoints (engine/attention_residual.h), and the ends of such a stream.
//
// Every block whose number is a multiple of attn_res_block_size makes the stream that comes in a checkpoint,
// and begins a new one with what its attention gives. So how many there are in front of a block follows from
// its number.
#pragma once

#include <memory>

#include "lm/model/blocks/layers.h"

namespace primus {

// Checkpoints in front of a block.
inline std::int64_t residual_checkpoints(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t size = config.residual_block;
  return size > 0 ? (layer + size - 1) / size : 0;
}

// {self_attention,mlp}_res_{norm,proj} beside what DecoderBlock has. The first block has no mixture before
// its attention, because there is no checkpoint yet.
class AttentionResidualBlock final : public Block {
 public:
  // Makes the parts in the order of the forward pass.
  template <class MakeAttention, class MakeFeedForward>
  AttentionResidualBlock(const ModelConfig& config, const BlockParameters& parameters,
                         MakeAttention make_attention, MakeFeedForward make_feed_forward)
      : layer_(parameters.layer()),
        begins_(layer_ % config.residual_block == 0),
        epsilon_(config.norm_epsilon),
        before_attention_(layer_ > 0 ? mixture(parameters, "self_attention") : Mixture()),
        attention_norm_(parameters.norm(".attention_norm", ".input_layernorm.weight")),
        attention_(make_attention()),
        before_ffn_(mixture(parameters, "mlp")),
        ffn_norm_(parameters.norm(".ffn_norm", ".post_attention_layernorm.weight")),
        feed_forward_(make_feed_forward()) {}

  void forward(engine::Residual& x, const BlockInputs& inputs) const override;
  void end_step(turbo::Context& context, const RoutingStep& step) const override;

 private:
  struct Mixture {
    engine::Parameter *norm = nullptr, *proj = nullptr;
  };
  static Mixture mixture(const BlockParameters& parameters, const std::string& branch);
  // What a branch reads, normed. The stream has nothing pending.
  engine::Value read(const engine::Residual& x, const Mixture& of, engine::Parameter& norm) const;

  std::int64_t layer_;
  bool begins_;  // a new stream
  double epsilon_;
  Mixture before_attention_;
  engine::Parameter& attention_norm_;
  std::unique_ptr<Layer> attention_;
  Mixture before_ffn_;
  engine::Parameter& ffn_norm_;
  std::unique_ptr<Layer> feed_forward_;
};

// Family::make_stream_ends of a model with such blocks: output_attn_res_{norm,proj}. Stages hand on the
// stream and as many checkpoints as there ever are, which are zero where there are fewer. A module of
// multi-token prediction (depth > 0) has none.
std::unique_ptr<StreamEnds> attention_residual_ends(const ModelConfig& config, engine::ParameterStore& store,
                                                    int depth, int chunk);

}  // namespace primus
