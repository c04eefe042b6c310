// The layers of blocks, and the block with two branches:
//
//   x = x + attention(norm(x));  x = x + feed_forward(norm(x))
//
// A block may scale the output of a branch. A branch may have a norm on its output, on its input, or on both.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/operators/normed.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// One branch of a block. A layer maps the normed residual stream to the value that is added to the stream.
// Input and output are [T, hidden]. If ranks share the layer, these tensors contain only this rank's tokens
// (engine/parallel/parallel_operators.h). Stateless except for its parameters.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual engine::Value forward(const engine::Normed& h, const BlockInputs& inputs) const = 0;
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}  // see Block::end_step()
};

// Declares the layer kinds of all files in blocks/. LayerKind::make makes the layers of a kind without
// options; the functions below make layers with options.
#include "lm/model/layer_kinds.def"  // generated; also declares kAllLayerKind

struct SelfAttentionOptions {
  enum class HeadNorm : std::uint8_t {
    kNone,
    kBeforeRope,  // RMSNorm of each query and key head, with weights: self_attn.{q,k}_norm (Qwen 3)
    kAfterRope,   // QK norm without weights, after the rotation (Llama 4)
    // Before the rotation, one RMSNorm over all query heads of a token, and one RMSNorm over all key heads of
    // a token (OLMo 2): self_attn.{q,k}_norm. Not supported if tensor ranks share the heads.
    kWhole,
  };
  bool qkv_bias = false, out_bias = false;  // whether self_attn.{q,k,v}_proj and self_attn.o_proj have biases
  HeadNorm head_norm = HeadNorm::kNone;
  bool rope = true, interleaved = false;
  bool local_rope = false;             // whether the layer uses the rope table of local layers
  std::int64_t window = 0, chunk = 0;  // see turbo::AttentionShape
  bool sinks = false;                  // whether the layer has self_attn.sinks
  bool fused_qkv = false;  // whether checkpoints store q, k and v as one matrix, self_attn.qkv_proj
  // A sigmoid gate multiplies each column of the attention output (Qwen3-Next). In self_attn.q_proj, the rows
  // of a head's gate follow the rows of its query. Cannot be combined with qkv_bias.
  bool output_gate = false;
  // Names in checkpoints: name of the output projection, and suffix of the names of the QK norms.
  std::string_view out_name = "o_proj", norm_name = "norm";
  double score_cap = 0;  // see turbo::AttentionShape::score_cap
  // Settings for scaling queries by their position; attn_scale = 0: no scaling.
  double floor_scale = 8192, attn_scale = 0;
  int first_scaled = 1;  // see turbo::PositionScale::first
};

// Returns the options of layer `layer` that follow from config.attention: window, chunk, rope and gate. The
// family sets the other options.
SelfAttentionOptions attention_options(const ModelConfig& config, std::int64_t layer);

// Creates grouped-query attention: self_attn.{q,k,v,o}_proj.
std::unique_ptr<Layer> self_attention(const ModelConfig& config, const BlockParameters& parameters,
                                      const SelfAttentionOptions& options = {});

// Options of multi-head latent attention (config.attention.latent), whose parameters are self_attn.{q_proj |
// q_a_proj, q_a_layernorm, q_b_proj}, self_attn.{kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj}, and,
// with an output gate, self_attn.g_proj. With config.attention.indexer, attention is sparse: each token
// attends only to tokens that an indexer selects (blocks/indexer.h).
struct LatentAttentionOptions {
  bool interleaved = true;  // true: a rotary pair is two neighbouring columns; false: its columns are half a
                            // head apart
  // Whether checkpoints store the projection of the rotated key in a separate tensor, self_attn.k_rope.
  bool own_rope_key = false;
  double norm_epsilon = 1e-6;  // epsilon of the norms of latents; DeepSeek's models use the default of
                               // RMSNorm
};
std::unique_ptr<Layer> latent_attention(const ModelConfig& config, const BlockParameters& parameters,
                                        const LatentAttentionOptions& options = {});

// Creates Kimi delta attention (config.linear): self_attn.{q,k,v}_{proj,conv1d}, self_attn.{f_a_proj,
// f_b_proj, A_log, dt_bias, b_proj, o_norm, o_proj}, and, for the output gate, self_attn.{g_proj | g_a_proj,
// g_b_proj}. `gate_bias`: whether g_b_proj has a bias.
std::unique_ptr<Layer> delta_attention(const ModelConfig& config, const BlockParameters& parameters,
                                       bool gate_bias = false);

// How checkpoints store the input projection of a gated delta network.
enum class DeltaProjection : std::uint8_t {
  kByKeyHead,  // in_proj_{qkvz,ba}, with rows grouped by key head (Qwen3-Next)
  kSeparate,   // in_proj_{qkv,z,b,a}, four matrices (Qwen3.5)
  // One matrix each for queries, keys, values, gates, b and a, and one convolution each for q, k and v:
  // self_attn.{q,k,v,g,b,a}_proj, self_attn.{q,k,v}_conv1d, self_attn.{A_log,dt_bias,o_norm,o_proj}
  // (flash-linear-attention).
  kEach,
};
// Creates a gated delta network (config.linear): linear_attn.{in_proj_*,conv1d,A_log,dt_bias,norm,out_proj},
// or the names that DeltaProjection describes.
std::unique_ptr<Layer> gated_delta_net(const ModelConfig& config, const BlockParameters& parameters,
                                       DeltaProjection projection);

// Names of a feed-forward's matrices in checkpoints.
struct FeedForwardNames {
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view gate_up = {};  // name of the matrix that contains gate and up; empty: gate and up are
                                  // separate
};

// SwiGLU of width `ffn`, or the model's variant of it (SiTU, or GELU in place of SiLU):
// <published>.{gate,up,down}_proj.
class FeedForward final : public Layer {
 public:
  // A `limit` above 0 clamps the results of the gate and up projections, as in DeepSeek-V4
  // (turbo::ClampedSwigluForward).
  FeedForward(const ModelConfig& config, const BlockParameters& parameters, std::int64_t ffn,
              const std::string& name, const std::string& published, const FeedForwardNames& names = {},
              double limit = 0);
  engine::Value forward(const engine::Normed& h, const BlockInputs& in) const override;
  // The two halves of the forward pass, for callers that insert other work between the halves. widen()
  // returns [T, this rank's width]. narrow() maps the result of widen() back to [T, hidden].
  engine::Value widen(const engine::Normed& h, const BlockInputs& in) const;
  engine::Value narrow(const engine::Value& wide, const BlockInputs& in) const;

  struct Matrices {
    engine::Parameter *gate_up, *down;
  };
  // Returns the matrices if this is plain SwiGLU whose width is not divided over ranks.
  std::optional<Matrices> plain_matrices() const;

 private:
  comm::Communicator* group_;  // ranks over which the width is divided
  double limit_;
  double situ_beta_, situ_linear_beta_;
  turbo::GluGate gate_;
  engine::Parameter &gate_up_, &down_;
};
std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name = ".ffn",
                                    const std::string& published = ".mlp",
                                    const FeedForwardNames& names = {});

// Names of a block's norms in checkpoints, relative to the block. If a name is empty, the block does not have
// that norm.
struct NormNames {
  std::string_view attention = ".input_layernorm.weight", ffn = ".post_attention_layernorm.weight";
  std::string_view after_attention = {}, after_ffn = {};  // norms on the output of attention and of the
                                                          // feed-forward branch
};

class DecoderBlock final : public Block {
 public:
  // Creates the layers in the order of the forward pass, which is also the order of their parameters in the
  // store.
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
