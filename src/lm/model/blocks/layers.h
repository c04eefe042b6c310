// The parts of blocks, and the block with two branches:
//
//   x = x + attention(norm(x));  x = x + feed_forward(norm(x))
//
// The output of a branch may be scaled. A norm may be on the branch's output, on its input, or on both.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/normed.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// One branch of a block: maps the normed residual stream to the addend of the stream. Both are [T, hidden];
// if ranks share the layer, both have only this rank's tokens (engine/parallel_operators.h). Stateless except
// for its parameters.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual engine::Value forward(const engine::Normed& h, const BlockInputs& inputs) const = 0;
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}  // see Block::end_step()
};

// Declares the kinds of all files of blocks/. LayerKind::make makes the layers of a kind without options; the
// functions below make the others.
#include "lm/model/layer_kinds.def"  // generated: also kAllLayerKind

struct SelfAttentionOptions {
  enum class HeadNorm : std::uint8_t {
    kNone,
    kBeforeRope,  // RMSNorm of each query and key head, with weights: self_attn.{q,k}_norm (Qwen 3)
    kAfterRope,   // QK norm without weights (Llama 4)
    // An RMSNorm over all query heads of a token together, and an RMSNorm over all its key heads, before the
    // rotation (OLMo 2): self_attn.{q,k}_norm. Not supported if tensor ranks share the heads.
    kWhole,
  };
  bool qkv_bias = false, out_bias = false;  // whether self_attn.{q,k,v}_proj and self_attn.o_proj have biases
  HeadNorm head_norm = HeadNorm::kNone;
  bool rope = true, interleaved = false;
  bool local_rope = false;             // whether the rope table of local layers is used
  std::int64_t window = 0, chunk = 0;  // see turbo::AttentionShape
  bool sinks = false;                  // whether the layer has self_attn.sinks
  bool fused_qkv = false;  // whether checkpoints fuse q, k and v in one matrix, self_attn.qkv_proj
  // A sigmoid gate multiplies each column of the attention output (Qwen3-Next). self_attn.q_proj has the gate
  // of each head after its query. Cannot be combined with qkv_bias.
  bool output_gate = false;
  // Names in checkpoints: the name of the output projection, and the suffix of the QK norms' names.
  std::string_view out_name = "o_proj", norm_name = "norm";
  double score_cap = 0;  // see turbo::AttentionShape::score_cap
  // Settings that scale queries by position; attn_scale 0: no scaling.
  double floor_scale = 8192, attn_scale = 0;
  int first_scaled = 1;  // see turbo::PositionScale::first
};

// Returns the options of this layer that config.attention sets: its window, chunk, rope and gate. The family
// sets the other options.
SelfAttentionOptions attention_options(const ModelConfig& config, std::int64_t layer);

// Grouped-query attention: self_attn.{q,k,v,o}_proj.
std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters,
                                      const SelfAttentionOptions& options = {});

// Multi-head latent attention (config.attention.latent): self_attn.{q_proj | q_a_proj, q_a_layernorm,
// q_b_proj}, self_attn.{kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj}, and, with an output gate,
// self_attn.g_proj. With config.attention.indexer, attention is sparse: an indexer selects its tokens
// (blocks/indexer.h).
struct LatentAttentionOptions {
  bool interleaved = true;  // whether rotary pairs are neighbours; false: half a head apart
  // Whether checkpoints store the rotated key's projection separately, as self_attn.k_rope.
  bool own_rope_key = false;
  double norm_epsilon = 1e-6;  // epsilon of the latents' norms; DeepSeek's models use the norm's default
};
std::unique_ptr<Layer> latent_attention(const ModelConfig& config, const BlockParameters& parameters,
                                        const LatentAttentionOptions& options = {});

// Kimi delta attention (config.linear): self_attn.{q,k,v}_{proj,conv1d}, self_attn.{f_a_proj, f_b_proj,
// A_log, dt_bias, b_proj, o_norm, o_proj}, and, for the output gate, self_attn.{g_proj | g_a_proj, g_b_proj}.
// `gate_bias`: whether g_b_proj has a bias.
std::unique_ptr<Layer> delta_attention(const ModelConfig& config, const BlockParameters& parameters,
                                       bool gate_bias = false);

// How checkpoints store the input projection of a gated delta network.
enum class DeltaProjection : std::uint8_t {
  kByKeyHead,  // in_proj_{qkvz,ba}: grouped by key head (Qwen3-Next)
  kSeparate,   // in_proj_{qkv,z,b,a} (Qwen3.5)
  // A separate matrix each for queries, keys, values, gates, b and a, and one convolution each for q, k and
  // v: self_attn.{q,k,v,g,b,a}_proj, self_attn.{q,k,v}_conv1d, self_attn.{A_log,dt_bias,o_norm,o_proj}
  // (flash-linear-attention).
  kEach,
};
// A gated delta network (config.linear): linear_attn.{in_proj_*,conv1d,A_log,dt_bias,norm,out_proj}, or as
// DeltaProjection describes.
std::unique_ptr<Layer> gated_delta_net(const ModelConfig& config, const BlockParameters& parameters,
                                       DeltaProjection projection);

// Names of a feed-forward's matrices in checkpoints.
struct FeedForwardNames {
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view gate_up = {};  // name of the matrix that fuses gate and up; empty: two matrices
};

// SwiGLU of width `ffn`, or the model's variant of it (SiTU, or GELU instead of SiLU):
// <published>.{gate,up,down}_proj.
class FeedForward final : public Layer {
 public:
  // `limit` above 0 clamps the inputs of the gate, as in DeepSeek-V4 (turbo::ClampedSwigluForward).
  FeedForward(const ModelConfig& config, const BlockParameters& parameters, std::int64_t ffn,
              const std::string& name, const std::string& published, const FeedForwardNames& names = {},
              double limit = 0);
  engine::Value forward(const engine::Normed& h, const BlockInputs& in) const override;
  // The two halves, for callers that insert other work between them: widen() maps to [T, this rank's width],
  // and narrow() maps back.
  engine::Value widen(const engine::Normed& h, const BlockInputs& in) const;
  engine::Value narrow(const engine::Value& wide, const BlockInputs& in) const;

 private:
  comm::Communicator* group_;  // the ranks that share the width
  double limit_;
  double situ_beta_, situ_linear_beta_;
  turbo::GluGate gate_;
  engine::Parameter &gate_up_, &down_;
};
std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name = ".ffn",
                                    const std::string& published = ".mlp",
                                    const FeedForwardNames& names = {});

// Names of a block's norms in checkpoints, relative to the block. An empty name means that the block has no
// such norm.
struct NormNames {
  std::string_view attention = ".input_layernorm.weight", ffn = ".post_attention_layernorm.weight";
  std::string_view after_attention = {}, after_ffn = {};  // norms on the branches' outputs
};

class DecoderBlock final : public Block {
 public:
  // Creates the parts in the order of the forward pass, which determines their order in the store.
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
    engine::Parameter* norm = nullptr;  // null if the branch reads the raw residual stream
    std::unique_ptr<Layer> layer;
    engine::Parameter* norm_after = nullptr;  // null if the branch's output is added without a norm
  };
  void run(const Branch& branch, engine::Residual& x, const BlockInputs& inputs) const;

  std::int64_t layer_;
  double epsilon_;
  float residual_scale_;
  Branch attention_, feed_forward_;
};

}  // namespace primus
