#include "engine/operators/normed.h"

#include "engine/operators/row_adapters.h"

namespace primus::engine {

using turbo::AroundProduct;
using turbo::Gemm;
using turbo::GemmRole;

// Attributes of the fused product that OperatorCall does not provide.
struct Normed::Fused {
  Tensor norm, bias;
  float epsilon, offset;
  bool has_delta;
  AroundProduct::End end = AroundProduct::End::kNone;
  Tensor table = {};
  std::int64_t heads = 0, head_dim = 0;

  enum In : InputName { kX, kDelta, kPositions };  // kPositions is set only with rotation
  enum Out : OutputName { kY, kSum };              // kSum exists only with a delta

  static void forward(OperatorCall& op) {
    const auto a = op.attributes<Fused>();
    turbo::launch(op.context(), Gemm{.role = GemmRole::kForward,
                                     .a = op.in(kX),
                                     .b = op.weight(),
                                     .c = op.out(kY),
                                     .around = {.norm = a.norm,
                                                .delta = a.has_delta ? op.in(kDelta) : Tensor(),
                                                .sum = a.has_delta ? op.out(kSum) : Tensor(),
                                                .eps = a.epsilon,
                                                .offset = a.offset,
                                                .bias = a.bias,
                                                .end = a.end,
                                                .positions = op.optional_in(kPositions),
                                                .table = a.table,
                                                .heads = a.heads,
                                                .head_dim = a.head_dim},
                                     .workspace = {}});
  }
  static constexpr Operator kOperator{
      .name = "normed_linear", .operator_class = OperatorClass::kLinear, .forward = forward};
};

Normed::Normed(Residual& x, Parameter& weight, double epsilon, bool decoding)
    : x_(&x), weight_(&weight), epsilon_(epsilon) {
  if (!decoding) value();
}

const Value& Normed::value() const {
  if (!value_) value_ = norm(*x_, *weight_, epsilon_);
  return value_;
}

bool Normed::fuses(const Parameter& weight, AroundProduct::End end) const {
  if (value_ || weight.low_rank || !weight.low_rank.parts.empty() || weight.four_bit) return false;
  const Value& x = x_->sum;
  if (adapts_rows(x.tape(), weight)) return false;
  return x.dtype() == DType::kBF16 && x.shape()[0] <= AroundProduct::kMaxRows &&
         x.shape()[1] % AroundProduct::kColumnMultiple == 0 &&
         is_taken(x.tape().context().device, Gemm{.role = GemmRole::kForward,
                                                  .a = x.tensor(),
                                                  .b = weight.value,
                                                  .around = {.norm = weight_->value, .end = end}});
}

Normed::Fused Normed::fused(Parameter* bias) const {
  return {.norm = weight_->value,
          .bias = bias ? bias->value : Tensor(),
          .epsilon = static_cast<float>(epsilon_),
          .offset = weight_->norm_offset,
          .has_delta = static_cast<bool>(x_->pending)};
}

Value Normed::multiply(Parameter& weight, const Fused& how, std::int64_t cols, const Value& positions) const {
  const Tape::Output y{Fused::kY, x_->sum.dtype(), {x_->sum.shape()[0], cols}};
  Tape& tape = x_->sum.tape();
  if (!how.has_delta)
    return tape.record(Fused::kOperator, {{Fused::kX, x_->sum}, {Fused::kPositions, positions}}, &weight, {y},
                       how)[Fused::kY];
  Tape::Outputs recorded = tape.record(
      Fused::kOperator, {{Fused::kX, x_->sum}, {Fused::kDelta, x_->pending}, {Fused::kPositions, positions}},
      &weight, {y, {Fused::kSum, x_->sum.dtype(), x_->sum.shape()}}, how);
  *x_ = {std::move(recorded[Fused::kSum]), {}};
  return std::move(recorded[Fused::kY]);
}

Value Normed::linear(Parameter& weight, Parameter* bias) const {
  if (fuses(weight, AroundProduct::End::kNone)) return multiply(weight, fused(bias), weight.shape[0], {});
  Value y = engine::linear(value(), weight);
  return bias ? add_bias(std::move(y), *bias) : y;
}

Value Normed::rotated_linear(Parameter& weight, Parameter* bias, const Value& positions, const Tensor& table,
                             const RopeShape& shape) const {
  const bool whole_heads = shape.rotary_dim == shape.head_dim && !shape.interleaved;
  if (!whole_heads || !fuses(weight, AroundProduct::End::kRope))
    return rope(linear(weight, bias), positions, table, shape);
  Fused how = fused(bias);
  how.end = AroundProduct::End::kRope;
  how.table = table, how.heads = shape.heads, how.head_dim = shape.head_dim;
  return multiply(weight, how, weight.shape[0], positions);
}

Value Normed::gated_linear(Parameter& weight, turbo::GluGate gate) const {
  if (gate != turbo::GluGate::kSilu || !fuses(weight, AroundProduct::End::kSwiglu))
    return swiglu(linear(weight), gate);
  Fused how = fused(nullptr);
  how.end = AroundProduct::End::kSwiglu;
  return multiply(weight, how, weight.shape[0] / 2, {});
}

}  // namespace primus::engine
