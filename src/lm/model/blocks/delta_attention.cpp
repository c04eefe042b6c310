#include <cmath>

#include "engine/operators/channel_gate.h"
#include "engine/operators/delta_rule.h"
#include "engine/operators/gates.h"
#include "engine/operators/short_convolution.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/linear_attention.h"
#include "lm/model/layer_kind.h"

namespace primus {

// Kimi delta attention: lower bound of the gates (0: no bound), and whether the output gate is one matrix of
// full rank.
PRIMUS_MODEL_FIELD(LINEAR, double, gate_lower_bound, 0, kda_gate_lower_bound, kFixed, "gate_lower_bound");
PRIMUS_MODEL_FIELD(LINEAR, bool, full_rank_gate, false, kda_use_full_rank_gate, kShape, "use_full_rank_gate");

namespace {

using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;

// Heads are independent between the input and output projections. Tensor ranks therefore divide the heads.
// The latents of the gates are small, so each rank computes the latents of its own tokens.
class DeltaAttention final : public Layer {
 public:
  DeltaAttention(const ModelConfig& c, const BlockParameters& p, bool gate_bias)
      : group_(p.tensor_group()),
        shape_{.batch = 0,
               .sequence = 0,
               .key_heads = p.tensor().size(c.linear.key_heads),
               .value_heads = p.tensor().size(c.linear.value_heads),
               .key_dim = c.linear.key_dim,
               .value_dim = c.linear.value_dim,
               .channel_gates = true,
               .normalise = true,
               .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.linear.key_dim)))},
        lower_bound_(c.linear.gate_lower_bound),
        epsilon_(c.norm_epsilon),
        width_(c.linear.conv_width),
        layer_(p.layer()) {
    const LinearAttentionConfig& linear = c.linear;
    const std::int64_t keys = linear.keys(), values = linear.values(), heads = linear.value_heads;
    const std::int64_t gates = heads * linear.key_dim;  // one gate per key channel of each value head
    const auto matrix = [&](const std::string& name, Share share, const std::string& published) {
      const std::int64_t rows = share.placement.is_whole() ? share.shape[0] : share.placement.whole[0];
      return &p.linear(".attention." + name, std::move(share), p.matrix(),
                       {{".self_attn." + published + ".weight", 0, rows}});
    };
    qkv_ = &p.linear(".attention.qkv", p.rows({keys, keys, values}, c.hidden), p.matrix(),
                     {{".self_attn.q_proj.weight", 0, keys},
                      {".self_attn.k_proj.weight", keys, keys},
                      {".self_attn.v_proj.weight", 2 * keys, values}});
    // PyTorch initializes Conv1d weights uniformly in [-spread, spread].
    const double spread = 1 / std::sqrt(3 * static_cast<double>(width_));
    const auto of = [&](std::int64_t channels) {
      return engine::PublishedLayout{.shape = {channels, 1, width_}};
    };
    kernel_ = &p.add(".attention.kernel", p.rows({keys, keys, values}, width_), Initializer::normal(spread),
                     {{".self_attn.q_conv1d.weight", 0, keys, of(keys)},
                      {".self_attn.k_conv1d.weight", keys, keys, of(keys)},
                      {".self_attn.v_conv1d.weight", 2 * keys, values, of(values)}});
    kernel_->kernel = true;
    gate_down_ = matrix("gate_down", {{linear.value_dim, c.hidden}, {}}, "f_a_proj");
    gate_up_ = matrix("gate_up", p.rows({gates}, linear.value_dim), "f_b_proj");
    beta_ = matrix("beta", p.rows({heads}, c.hidden), "b_proj");
    // Kimi Linear draws the initial decay rates from 1 to 16. The checkpoints of Kimi Linear store A_log with
    // four dimensions. In K3, all initial decay rates are 1.
    const bool of_k3 = linear.gate_lower_bound < 0;
    a_log_ =
        small(p, "a_log", heads, of_k3 ? Initializer::constant(0) : Initializer::log_uniform(1, 16), "A_log");
    if (c.family == "kimi_linear") a_log_->parts.front().layout.shape = {1, 1, heads, 1};
    bias_ = small(p, "bias", gates, Initializer::gate_bias(1e-3, 1e-1), "dt_bias");
    if (linear.full_rank_gate) {
      out_gate_ = matrix("out_gate", p.rows({values}, c.hidden), "g_proj");
    } else {
      out_gate_down_ = matrix("out_gate_down", {{linear.value_dim, c.hidden}, {}}, "g_a_proj");
      out_gate_ = matrix("out_gate", p.rows({values}, linear.value_dim), "g_b_proj");
    }
    // Initial biases have the range of PyTorch's Linear, as in Megatron-LM.
    if (gate_bias) {
      out_gate_bias_ = &p.add(".attention.out_gate_bias", p.rows({values}),
                              Initializer::normal(1 / std::sqrt(3 * static_cast<double>(linear.value_dim))),
                              {{".self_attn.g_b_proj.bias", 0, values}});
    }
    norm_ = &p.add(".attention.norm", {linear.value_dim}, Initializer::constant(1),
                   {{".self_attn.o_norm.weight", 0, linear.value_dim}});
    out_ = &p.linear(".attention.out", p.columns(c.hidden, values), p.into_residual(),
                     {{".self_attn.o_proj.weight", 0, c.hidden}});
  }

  Value forward(const Normed& normed, const BlockInputs& in) const override {
    const Value& own = normed.value();
    const Value h = gather_tokens(own, group_);
    const auto cache = [&] { return in.cache ? in.cache->layer(layer_) : engine::CachedSequences(); };
    const Value qkv = engine::short_convolution(
        linear(h, *qkv_), *kernel_,
        {.batch = in.batch,
         .sequence = in.sequence,
         .channels = shape_.width(),
         .width = width_,
         .form = turbo::CausalConvShape::Form::kSilu},
        {.cache = cache(), .context = in.context, .first_key = in.first_key, .bias = nullptr});
    const engine::ChannelGateValues gates = channel_gates(through_latent(own, *gate_down_, *gate_up_),
                                                          linear(h, *beta_), *a_log_, *bias_, lower_bound_);
    turbo::DeltaRuleShape shape = shape_;
    shape.batch = in.batch, shape.sequence = in.sequence;
    const Value mixed = delta_rule(qkv, gates.g, gates.beta, shape,
                                   {.cache = cache(), .context = in.context, .first_key = in.first_key});
    Value gate = out_gate_down_ ? through_latent(own, *out_gate_down_, *out_gate_) : linear(h, *out_gate_);
    if (out_gate_bias_) gate = add_bias(std::move(gate), *out_gate_bias_);
    return scattered_linear(gated_norm(mixed, gate, *norm_, turbo::GateActivation::kSigmoid, epsilon_), *out_,
                            group_, in.tensor);
  }

 private:
  // Declares a small parameter in fp32. Checkpoints also store the parameter in fp32, as published
  // checkpoints do.
  static Parameter* small(const BlockParameters& p, const std::string& name, std::int64_t n,
                          Initializer initializer, const std::string& published) {
    Parameter& parameter =
        p.add(".attention." + name, p.rows({n}), initializer, {{".self_attn." + published, 0, n}});
    parameter.full_precision = true;
    return &parameter;
  }

  Value through_latent(const Value& own, Parameter& down, Parameter& up) const {
    return linear(gather_tokens(linear(own, down), group_), up);
  }

  comm::Communicator* group_;    // the ranks over which the heads are divided
  turbo::DeltaRuleShape shape_;  // shape of this rank's heads
  double lower_bound_, epsilon_;
  std::int64_t width_, layer_;
  Parameter *qkv_ = nullptr, *kernel_ = nullptr;
  Parameter *gate_down_ = nullptr, *gate_up_ = nullptr, *beta_ = nullptr, *a_log_ = nullptr, *bias_ = nullptr;
  Parameter *out_gate_down_ = nullptr, *out_gate_ = nullptr;  // if out_gate_down_ is null, the gate has a
                                                              // single matrix of full rank
  Parameter* out_gate_bias_ = nullptr;                        // null if the output gate has no bias
  Parameter *norm_ = nullptr, *out_ = nullptr;
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  const LinearAttentionConfig& l = c.linear;
  std::vector<LayerProduct> all = {{"linear attention qkv", 2 * l.keys() + l.values(), c.hidden},
                                   {"linear attention decay, down", l.value_dim, c.hidden},
                                   {"linear attention decay, up", l.value_heads * l.key_dim, l.value_dim},
                                   {"linear attention beta", l.value_heads, c.hidden}};
  if (l.full_rank_gate) {
    all.push_back({"linear attention gate", l.values(), c.hidden});
  } else {
    all.push_back({"linear attention gate, down", l.value_dim, c.hidden});
    all.push_back({"linear attention gate, up", l.values(), l.value_dim});
  }
  all.push_back({"linear attention out", c.hidden, l.values()});
  return all;
}

void make_cache(const ModelConfig& c, const CacheRequest& request, engine::Phase& phase,
                engine::KvCacheLayer& entry) {
  make_linear_cache(c, request, /*channel_gates=*/true, phase, entry);
}

}  // namespace

std::unique_ptr<Layer> delta_attention(const ModelConfig& config, const BlockParameters& parameters,
                                       bool gate_bias) {
  return std::make_unique<DeltaAttention>(config, parameters, gate_bias);
}

extern const LayerKind kDeltaAttention{.branch = LayerKind::Branch::kAttention,
                                       .keeps = Keeps::kState,
                                       .products = products,
                                       .mixing = linear_mixing,
                                       .shared_by_tensor_ranks = linear_shared_by_tensor_ranks,
                                       .context_mismatch = linear_context_mismatch,
                                       .make_cache = make_cache,
                                       .bytes_read = linear_bytes_read,
                                       .summary = linear_summary};

}  // namespace primus
