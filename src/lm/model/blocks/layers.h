// The parts that blocks are composed of, and the block with two branches itself.
//
//   x = x + attention(norm(x));  x = x + feed_forward(norm(x))
//
// What a branch gives may be normed, too, or instead of what it reads, and scaled.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/normed.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// One branch of a block: takes the normed residual stream and gives what is added to it, both [T, hidden], or
// of this rank's tokens where ranks share the layer (engine/parallel_operators.h). Stateless but for its
// parameters.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual engine::Value forward(const engine::Normed& h, const BlockInputs& inputs) const = 0;
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}  // as Block's
};

// The kinds whose layers are made below, but for those of a plain layer (lm/model/layer_spec.h).
extern const LayerKind kLatentAttention, kCompressedAttention, kDeltaAttention, kGatedDeltaNet,
    kShortConvolution;

struct SelfAttentionOptions {
  enum class HeadNorm : std::uint8_t {
    kNone,
    kBeforeRope,  // RMSNorm of each query and key head, with weights: self_attn.{q,k}_norm (Qwen 3)
    kAfterRope,   // without weights (Llama 4)
    // All queries of a token together, and all its keys, before the rotation (OLMo 2): self_attn.{q,k}_norm.
    // Not where tensor ranks share the heads.
    kWhole,
  };
  bool qkv_bias = false, out_bias = false;  // self_attn.{q,k,v}_proj.bias, self_attn.o_proj.bias
  HeadNorm head_norm = HeadNorm::kNone;
  bool rope = true, interleaved = false;
  bool local_rope = false;             // by the table of local layers
  std::int64_t window = 0, chunk = 0;  // as turbo::AttentionShape
  bool sinks = false;                  // self_attn.sinks
  bool fused_qkv = false;              // checkpoints have one matrix for all three, self_attn.qkv_proj
  // What comes out is multiplied with sigmoids of a gate for each of its columns (Qwen3-Next):
  // self_attn.q_proj has the gates of each head behind its query. Not with qkv_bias.
  bool output_gate = false;
  // What checkpoints call the output's projection, and end the names of the heads' norms with.
  std::string_view out_name = "o_proj", norm_name = "norm";
  double score_cap = 0;                       // as turbo::AttentionShape::score_cap
  double floor_scale = 8192, attn_scale = 0;  // queries are scaled by position; attn_scale 0: they are not
  int first_scaled = 1;                       // as turbo::PositionScale::first
};

// What config.attention says about this layer: its window, chunk, rope and gate. The rest is the family's to
// set.
SelfAttentionOptions attention_options(const ModelConfig& config, std::int64_t layer);

// Grouped-query attention: self_attn.{q,k,v,o}_proj.
std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters,
                                      const SelfAttentionOptions& options = {});

// Multi-head latent attention (config.attention.latent): self_attn.{q_proj | q_a_proj, q_a_layernorm,
// q_b_proj}, self_attn.{kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj}, and self_attn.g_proj where it
// has an output gate.
// With config.attention.indexer it is to the tokens that an indexer selects (blocks/indexer.h).
struct LatentAttentionOptions {
  bool interleaved = true;     // rotary pairs are neighbours, or else lie half a head apart
  bool own_rope_key = false;   // checkpoints have the rotated key's projection by itself, self_attn.k_rope
  double norm_epsilon = 1e-6;  // of latents: DeepSeek's models leave it at the default of their norm
};
std::unique_ptr<Layer> latent_attention(const ModelConfig& config, const BlockParameters& parameters,
                                        const LatentAttentionOptions& options = {});

// Attention over a window and over pooled latents (Keeps::kPooled): attn.{wq_a, q_norm, wq_b,
// wkv, norm, wo_a, wo_b, attn_sink, compressor, indexer}.
std::unique_ptr<Layer> compressed_attention(const ModelConfig& config, const BlockParameters& parameters);
// Kimi delta attention (config.linear): self_attn.{q,k,v}_{proj,conv1d}, self_attn.{f_a_proj, f_b_proj,
// A_log, dt_bias, b_proj, o_norm, o_proj}, and the output's gate, self_attn.{g_proj | g_a_proj, g_b_proj}.
// `gate_bias`: g_b_proj has a bias.
std::unique_ptr<Layer> delta_attention(const ModelConfig& config, const BlockParameters& parameters,
                                       bool gate_bias = false);

// A gated short convolution over the last conv_L_cache tokens: conv.{in_proj,conv,out_proj}.
std::unique_ptr<Layer> short_convolution(const ModelConfig& config, const BlockParameters& parameters);

// What checkpoints have of the input's projection of a gated delta network.
enum class DeltaProjection : std::uint8_t {
  kByKeyHead,  // in_proj_{qkvz,ba}: of each key head what belongs to it (Qwen3-Next)
  kSeparate,   // in_proj_{qkv,z,b,a} (Qwen3.5)
  // A matrix for each of queries, keys, values, gates, b and a, and likewise for convolutions:
  // self_attn.{q,k,v,g,b,a}_proj, self_attn.{q,k,v}_conv1d, self_attn.{A_log,dt_bias,o_norm,o_proj}
  // (flash-linear-attention).
  kEach,
};
// A gated delta network (config.linear): linear_attn.{in_proj_*,conv1d,A_log,dt_bias,norm,out_proj}, or as
// `projection` says.
std::unique_ptr<Layer> gated_delta_net(const ModelConfig& config, const BlockParameters& parameters,
                                       DeltaProjection projection);

// What checkpoints call the matrices of a feed-forward.
struct FeedForwardNames {
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view gate_up = {};  // not empty: one matrix of this name stands for gate and up
};

// SwiGLU, or what the model has for it (SiTU, GELU for SiLU), of width `ffn`:
// <published>.{gate,up,down}_proj.
class FeedForward final : public Layer {
 public:
  // `limit` above 0: of what is gated, as DeepSeek-V4 has it (turbo::ClampedSwigluForward).
  FeedForward(const ModelConfig& config, const BlockParameters& parameters, std::int64_t ffn,
              const std::string& name, const std::string& published, const FeedForwardNames& names = {},
              double limit = 0);
  engine::Value forward(const engine::Normed& h, const BlockInputs& in) const override;
  // Its halves, for those who do something else in between: to [T, this rank's width], and back.
  engine::Value widen(const engine::Normed& h, const BlockInputs& in) const;
  engine::Value narrow(const engine::Value& wide, const BlockInputs& in) const;

 private:
  comm::Communicator* group_;  // that shares the width
  double limit_;
  double situ_beta_, situ_linear_beta_;
  turbo::GluGate gate_;
  engine::Parameter &gate_up_, &down_;
};
std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name = ".ffn",
                                    const std::string& published = ".mlp",
                                    const FeedForwardNames& names = {});

// What checkpoints call the norms of a block, within it. An empty name: there is no such norm.
struct NormNames {
  std::string_view attention = ".input_layernorm.weight", ffn = ".post_attention_layernorm.weight";
  std::string_view after_attention = {}, after_ffn = {};  // of what the branches give
};

class DecoderBlock final : public Block {
 public:
  // Makes the parts in the order of the forward pass: which parameter is which in the store depends on it.
  template <class MakeAttention, class MakeFeedForward>
  DecoderBlock(const ModelConfig& config, const BlockParameters& parameters, MakeAttention make_attention,
               MakeFeedForward make_feed_forward, const NormNames& names = {})
      : layer_(parameters.layer()),
        epsilon_(config.norm_epsilon),
        residual_scale_(static_cast<float>(config.residual_scale)) {
    const auto norm = [&](const char* name, std::string_view published) -> engine::Parameter* {
      return published.empty() ? nullptr : &parameters.norm(name, std::string(published));
    };
    attention_.norm = norm(".attention_norm", names.attention);
    attention_.layer = make_attention();
    attention_.norm_after = norm(".attention_norm_after", names.after_attention);
    feed_forward_.norm = norm(".ffn_norm", names.ffn);
    feed_forward_.layer = make_feed_forward();
    feed_forward_.norm_after = norm(".ffn_norm_after", names.after_ffn);
  }

  void forward(engine::Residual& x, const BlockInputs& inputs) const override;
  void end_step(turbo::Context& context, const RoutingStep& step) const override;

 private:
  struct Branch {
    engine::Parameter* norm = nullptr;  // null: the branch reads the residual stream as it is
    std::unique_ptr<Layer> layer;
    engine::Parameter* norm_after = nullptr;  // null: what it gives is added as it is
  };
  void run(const Branch& branch, engine::Residual& x, const BlockInputs& inputs) const;

  std::int64_t layer_;
  double epsilon_;
  float residual_scale_;
  Branch attention_, feed_forward_;
};

}  // namespace primus
