#include "lm/model/blocks/layers.h"

#include <utility>

#include "engine/operators/gates.h"
#include "engine/operators/moe_operators.h"
#include "engine/operators/situ.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/layer_kind.h"

namespace primus {

// Limits of soft capping in SiTU (turbo/situ). If the first is not 0, feed-forwards use SiTU in place of
// SwiGLU; a second limit of 0 has no effect.
PRIMUS_MODEL_FIELD(MODEL, double, situ_beta, 0, activation_situ_beta, kFixed, "activation_situ_beta");
PRIMUS_MODEL_FIELD(MODEL, double, situ_linear_beta, 0, activation_situ_linear_beta, kFixed,
                   "activation_situ_linear_beta");

using engine::Normed;
using engine::Value;

namespace {

std::string weight_name(const std::string& prefix, std::string_view matrix) {
  return prefix + "." + std::string(matrix) + ".weight";
}

std::vector<engine::CheckpointPart> gate_up_parts(const std::string& published, const FeedForwardNames& names,
                                                  std::int64_t ffn) {
  if (!names.gate_up.empty()) return {{weight_name(published, names.gate_up), 0, 2 * ffn}};
  return {{weight_name(published, names.gate), 0, ffn}, {weight_name(published, names.up), ffn, ffn}};
}

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  return {{.what = "gate and up", .out = 2 * c.ffn, .in = c.hidden, .module = "linear_fc1"},
          {.what = "down", .out = c.hidden, .in = c.ffn, .module = "linear_fc2"}};
}

std::vector<SharedExtent> shared(const ModelConfig& c) {
  return {{c.ffn, "columns of the feed-forward layers (ffn_hidden_size)"}};
}

}  // namespace

FeedForward::FeedForward(const ModelConfig& c, const BlockParameters& p, std::int64_t ffn,
                         const std::string& name, const std::string& published, const FeedForwardNames& names,
                         double limit)
    : group_(p.tensor_group()),
      limit_(limit),
      situ_beta_(c.situ_beta),
      situ_linear_beta_(c.situ_linear_beta),
      gate_(c.gelu_gates ? turbo::GluGate::kGeluTanh : turbo::GluGate::kSilu),
      gate_up_(p.linear("linear_fc1", name + ".gate_up", p.rows({ffn, ffn}, c.hidden), p.matrix(),
                        gate_up_parts(published, names, ffn))),
      down_(p.linear("linear_fc2", name + ".down", p.columns(c.hidden, ffn), p.into_residual(),
                     {{weight_name(published, names.down), 0, c.hidden}})) {}

Value FeedForward::forward(const Normed& h, const BlockInputs& in) const { return narrow(widen(h, in), in); }

Value FeedForward::widen(const Normed& h, const BlockInputs& in) const {
  if (situ_beta_ == 0 && limit_ == 0 && !group_) return h.gated_linear(gate_up_, gate_);
  const Value wide = group_ ? gathered_linear(h.value(), gate_up_, group_, in.tensor) : h.linear(gate_up_);
  if (limit_ > 0) return clamped_swiglu(wide, {.limit = limit_, .alpha = 1, .shift = 0});
  return situ_beta_ > 0 ? situ(wide, situ_beta_, situ_linear_beta_) : swiglu(wide, gate_);
}

Value FeedForward::narrow(const Value& wide, const BlockInputs& in) const {
  return scattered_linear(wide, down_, group_, in.tensor);
}

std::optional<FeedForward::Matrices> FeedForward::plain_matrices() const {
  if (group_ || situ_beta_ != 0 || limit_ != 0 || gate_ != turbo::GluGate::kSilu) return {};
  return Matrices{&gate_up_, &down_};
}

std::unique_ptr<Layer> feed_forward(const ModelConfig& config, const BlockParameters& parameters,
                                    std::int64_t ffn, const std::string& name, const std::string& published,
                                    const FeedForwardNames& names) {
  return std::make_unique<FeedForward>(config, parameters, ffn, name, published, names);
}

namespace {

// Copies x to other memory.
Value copy_of(const Value& x) {
  const turbo::ColumnRun all{
      .from = 0, .to = 0, .groups = 1, .columns = static_cast<std::int32_t>(x.shape()[1])};
  return split_columns(x, {{all}})[0];
}

}  // namespace

void DecoderBlock::forward(engine::Residual& x, const BlockInputs& in) const {
  engine::BlockScope scope(x, layer_);
  run(attention_, x, in);
  run(feed_forward_, x, in);
}

void DecoderBlock::run(const Branch& branch, engine::Residual& x, const BlockInputs& in) const {
  const bool decoding = in.cache && !x.sum.tape().gathers_parameters();
  if (!branch.norm) flush(x);
  // If there is no norm, the branch reads a copy of the stream. Without the copy, some settings would let a
  // product accumulate into the gradient of the stream. These settings only select how weight gradients are
  // computed, and must not change the rounding.
  Value y = branch.layer->forward(
      branch.norm ? Normed(x, *branch.norm, epsilon_, decoding) : Normed(copy_of(x.sum)), in);
  if (branch.norm_after) y = norm(y, *branch.norm_after, epsilon_);
  if (residual_scale_ != 1) y = scale(std::move(y), residual_scale_);
  add(x, std::move(y));
}

void DecoderBlock::end_step(turbo::Context& context, const RoutingStep& step) const {
  attention_.layer->end_step(context, step);
  feed_forward_.layer->end_step(context, step);
}

extern const LayerKind kDenseFeedForward{.branch = LayerKind::Branch::kFeedForward,
                                         .batch_invariant = true,
                                         .products = products,
                                         .mixing = nullptr,
                                         .shared_by_tensor_ranks = shared};

}  // namespace primus
