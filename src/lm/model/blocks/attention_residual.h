// Attention residuals (Kimi K3). Each branch of a block reads a mixture of the residual stream and its
// checkpoints (engine/operators/attention_residual.h). This file also declares the layers at both ends of
// such a stream.
//
// If a block's index is a multiple of attn_res_block_size, the block saves the incoming stream as a
// checkpoint. The output of this block's attention starts a new stream. The number of checkpoints before a
// block therefore follows from the index of the block.
#pragma once

#include <memory>

#include "lm/model/blocks/layers.h"

namespace primus {

// Returns the number of checkpoints before block `layer`.
inline std::int64_t residual_checkpoints(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t size = config.residual_block;
  return size > 0 ? (layer + size - 1) / size : 0;
}

// A DecoderBlock with the additional parameters {self_attention,mlp}_res_{norm,proj}. In the first block,
// attention has no mixture, because there is no checkpoint yet.
class AttentionResidualBlock final : public Block {
 public:
  // Creates the layers in the order of the forward pass.
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
  // Returns the normed input of a branch. The stream must have no pending addition.
  engine::Value read(const engine::Residual& x, const Mixture& of, engine::Parameter& norm) const;

  std::int64_t layer_;
  bool begins_;  // whether the block starts a new stream
  double epsilon_;
  Mixture before_attention_;
  engine::Parameter& attention_norm_;
  std::unique_ptr<Layer> attention_;
  Mixture before_ffn_;
  engine::Parameter& ffn_norm_;
  std::unique_ptr<Layer> feed_forward_;
};

// Implements Family::make_stream_ends for models with attention residuals. The end of the stream has the
// parameters output_attn_res_{norm,proj}. Pipeline stages send the residual stream and a buffer for all of
// its checkpoints (saved streams). Checkpoints that do not exist yet are zero in this buffer. A multi-token
// prediction module (depth > 0) has no checkpoints.
std::unique_ptr<StreamEnds> attention_residual_ends(const ModelConfig& config, engine::ParameterStore& store,
                                                    int depth, int chunk);

}  // namespace primus
