// A gated delta network instead of attention (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next.
#include <cmath>

#include "engine/operators/delta_rule.h"
#include "engine/operators/gates.h"
#include "engine/operators/short_convolution.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/linear_attention.h"
#include "lm/model/layer_kind.h"

namespace primus {
namespace {

using engine::ColumnRuns;
using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;
using turbo::ColumnRun;

// Returns a range of adjacent columns that begins at `from`.
ColumnRun run(std::int64_t from, std::int64_t columns) {
  return {.from = static_cast<std::int32_t>(from),
          .to = 0,
          .groups = 1,
          .columns = static_cast<std::int32_t>(columns)};
}

// Tensor ranks divide the key heads. The value heads of a key head are on the same rank.
class GatedDeltaNet final : public Layer {
 public:
  GatedDeltaNet(const ModelConfig& c, const BlockParameters& p, DeltaProjection projection)
      : group_(p.tensor_group()),
        epsilon_(c.norm_epsilon),
        layer_(p.layer()),
        width_(c.linear.conv_width),
        in_order_(projection != DeltaProjection::kByKeyHead),
        shape_{.batch = 0,
               .sequence = 0,
               .key_heads = p.tensor().size(c.linear.key_heads),
               .value_heads = p.tensor().size(c.linear.value_heads),
               .key_dim = c.linear.key_dim,
               .value_dim = c.linear.value_dim,
               .channel_gates = false,
               .normalise = true,
               .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.linear.key_dim)))} {
    const std::int64_t k = c.linear.keys(), v = c.linear.values(), heads = c.linear.value_heads;
    const bool each = projection == DeltaProjection::kEach;
    const std::string at = each ? ".self_attn." : ".linear_attn.";
    if (projection == DeltaProjection::kByKeyHead) {
      in_ = &p.linear(".linear.in", p.rows({2 * k + 2 * v, 2 * heads}, c.hidden), p.matrix(),
                      {{at + "in_proj_qkvz.weight", 0, 2 * k + 2 * v},
                       {at + "in_proj_ba.weight", 2 * k + 2 * v, 2 * heads}});
      parts_ = parts_by_key_head();
    } else {
      std::vector<engine::CheckpointPart> parts = {{at + "in_proj_qkv.weight", 0, 2 * k + v},
                                                   {at + "in_proj_z.weight", 2 * k + v, v},
                                                   {at + "in_proj_b.weight", 2 * k + 2 * v, heads},
                                                   {at + "in_proj_a.weight", 2 * k + 2 * v + heads, heads}};
      if (each) {
        parts = {{at + "q_proj.weight", 0, k},
                 {at + "k_proj.weight", k, k},
                 {at + "v_proj.weight", 2 * k, v},
                 {at + "g_proj.weight", 2 * k + v, v},
                 {at + "b_proj.weight", 2 * k + 2 * v, heads},
                 {at + "a_proj.weight", 2 * k + 2 * v + heads, heads}};
      }
      in_ =
          &p.linear(".linear.in", p.rows({k, k, v, v, heads, heads}, c.hidden), p.matrix(), std::move(parts));
      const std::int64_t qkv = shape_.width(), z = shape_.out_width();
      parts_ = {{run(0, qkv)}, {run(qkv, z)}, {run(qkv + z, 2 * shape_.value_heads)}};
    }
    const auto part = [&](const std::string& name, std::int64_t first, std::int64_t rows) {
      return engine::CheckpointPart{at + name, first, rows, {.shape = {rows, 1, width_}}};
    };
    std::vector<engine::CheckpointPart> kernels = {part("conv1d.weight", 0, 2 * k + v)};
    if (each)
      kernels = {part("q_conv1d.weight", 0, k), part("k_conv1d.weight", k, k),
                 part("v_conv1d.weight", 2 * k, v)};
    // Initial weights have the standard deviation of PyTorch's convolutions, as in Megatron-LM and in the
    // published models. This deviation is large, because a convolution sums only a few numbers.
    kernel_ =
        &p.add(".linear.kernel", p.rows({k, k, v}, width_),
               Initializer::normal(1 / std::sqrt(3.0 * static_cast<double>(width_))), std::move(kernels));
    kernel_->kernel = true;
    // If the inputs are zero, the state decays by exp(-1 * softplus(1)) to exp(-16 * softplus(1)) per token,
    // depending on the head.
    a_log_ =
        &p.add(".linear.a_log", p.rows({heads}), Initializer::log_uniform(1, 16), {{at + "A_log", 0, heads}});
    dt_bias_ = &p.add(".linear.dt_bias", p.rows({heads}),
                      each ? Initializer::gate_bias(1e-3, 1e-1) : Initializer::constant(1),
                      {{at + "dt_bias", 0, heads}});
    a_log_->reads_full_precision = dt_bias_->reads_full_precision = true;
    norm_ = &p.add(".linear.norm", {shape_.value_dim}, Initializer::constant(1),
                   {{at + (each ? "o_norm.weight" : "norm.weight"), 0, shape_.value_dim}});
    out_ = &p.linear(".linear.out", p.columns(c.hidden, v), p.into_residual(),
                     {{at + (each ? "o_proj.weight" : "out_proj.weight"), 0, c.hidden}});
  }

  Value forward(const Normed& h, const BlockInputs& in) const override {
    const engine::CachedSequences cache = in.cache ? in.cache->layer(layer_) : engine::CachedSequences();
    Value wide = group_ ? gathered_linear(h.value(), *in_, group_, in.tensor) : h.linear(*in_);
    if (in.cache && in_order_ && !wide.tape().gathers_parameters()) {
      const engine::DeltaNetParameters parameters{kernel_, a_log_, dt_bias_, norm_, epsilon_};
      if (takes_delta_net_step(wide, parameters, shape_, cache)) {
        return scattered_linear(delta_net_step(wide, parameters, shape_, cache), *out_, group_, in.tensor);
      }
    }
    auto [qkv, z, ba] = split_columns(std::exchange(wide, {}), parts_);
    const engine::ShortConvolutionShape convolution{.batch = in.batch,
                                                    .sequence = in.sequence,
                                                    .channels = shape_.width(),
                                                    .width = width_,
                                                    .form = turbo::CausalConvShape::Form::kSilu};
    qkv = short_convolution(qkv, *kernel_, convolution,
                            {.cache = cache, .context = in.context, .first_key = in.first_key});
    const auto [g, beta] = delta_gates(std::exchange(ba, {}), *a_log_, *dt_bias_);
    turbo::DeltaRuleShape shape = shape_;
    shape.batch = in.batch, shape.sequence = in.sequence;
    const Value mixed = delta_rule(std::exchange(qkv, {}), g, beta, shape,
                                   {.cache = cache, .context = in.context, .first_key = in.first_key});
    const Value normed = gated_norm(mixed, z, *norm_, turbo::GateActivation::kSilu, epsilon_);
    return scattered_linear(normed, *out_, group_, in.tensor);
  }

 private:
  // Returns the column ranges for q, k and v, for the output gates, for b and for a. The projection's columns
  // are grouped by key head. A group has the query, the key, and then the values and gates of the group's
  // value heads. The columns of b and a are also grouped by key head.
  std::vector<ColumnRuns> parts_by_key_head() const {
    const turbo::DeltaRuleShape& s = shape_;
    const std::int64_t per_key = s.value_heads / s.key_heads, dim = s.key_dim, values = per_key * s.value_dim;
    const std::int64_t head = 2 * dim + 2 * values, rest = s.key_heads * head;
    const auto each = [&](std::int64_t from, std::int64_t columns, std::int64_t stride, std::int64_t to) {
      const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
      return ColumnRun{.from = narrow(from),
                       .to = narrow(to),
                       .groups = narrow(s.key_heads),
                       .columns = narrow(columns),
                       .from_stride = narrow(stride),
                       .to_stride = narrow(columns)};
    };
    return {{each(0, dim, head, 0), each(dim, dim, head, s.k_column()),
             each(2 * dim, values, head, s.v_column())},
            {each(2 * dim + values, values, head, 0)},
            {each(rest, per_key, 2 * per_key, 0), each(rest + per_key, per_key, 2 * per_key, s.value_heads)}};
  }

  comm::Communicator* group_;  // the ranks over which the heads are divided
  double epsilon_;
  std::int64_t layer_, width_;
  // Whether the projection's columns are the queries, keys, values, output gates, b and a of all heads.
  bool in_order_;
  turbo::DeltaRuleShape shape_;    // shape of this rank's heads
  std::vector<ColumnRuns> parts_;  // column ranges of the projection: columns for the convolution, output
                                   // gates, b and a
  Parameter *in_ = nullptr, *kernel_ = nullptr, *a_log_ = nullptr, *dt_bias_ = nullptr, *norm_ = nullptr,
            *out_ = nullptr;
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  const LinearAttentionConfig& l = c.linear;
  return {{"linear attention in", 2 * (l.keys() + l.values() + l.value_heads), c.hidden},
          {"linear attention out", c.hidden, l.values()}};
}

void make_cache(const ModelConfig& c, const CacheRequest& request, engine::Phase& phase,
                engine::KvCacheLayer& entry) {
  make_linear_cache(c, request, /*channel_gates=*/false, phase, entry);
}

}  // namespace

std::unique_ptr<Layer> gated_delta_net(const ModelConfig& config, const BlockParameters& parameters,
                                       DeltaProjection projection) {
  return std::make_unique<GatedDeltaNet>(config, parameters, projection);
}

extern const LayerKind kGatedDeltaNet{.branch = LayerKind::Branch::kAttention,
                                      .keeps = Keeps::kState,
                                      .products = products,
                                      .mixing = linear_mixing,
                                      .shared_by_tensor_ranks = linear_shared_by_tensor_ranks,
                                      .context_mismatch = linear_context_mismatch,
                                      .make_cache = make_cache,
                                      .bytes_read = linear_bytes_read,
                                      .summary = linear_summary};

}  // namespace primus
