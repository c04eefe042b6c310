#include "turbo/causal_conv/causal_conv.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_edge(const CausalConvShape& s, const Tensor& edge) {
  return edge.dtype == DType::kF32 && edge.shape == s.edge();
}

// Returns whether the input rows `bcx` and the output rows `y` have the right types and shapes.
bool are_rows(const CausalConvShape& s, const Tensor& bcx, const Tensor& y) {
  return is_float(bcx) && bcx.shape == Shape{s.rows(), s.columns()} && y.dtype == bcx.dtype &&
         y.shape == Shape{s.rows(), s.channels};
}

bool is_kernel(const CausalConvShape& s, const Tensor& weight, const Tensor& bcx) {
  return weight.dtype == bcx.dtype && weight.shape == Shape{s.channels, s.width};
}

bool is_bias(const Tensor& bias, std::int64_t channels) {
  return bias.absent() || is_vector(bias, DType::kF32, channels);
}

bool is_first_key(const CausalConvShape& s, const Tensor& first_key) {
  return first_key.absent() || is_vector(first_key, DType::kI32, s.rows());
}

// Returns whether `before` is valid. It must be present if a segment begins inside its sequence.
bool has_before(const CausalConvShape& s, const Tensor& before) {
  return before.absent() ? s.width == 1 || (s.first_of_even == 0 && s.first_of_odd == 0) : is_edge(s, before);
}

// Returns whether weight and bias are valid. For kSilu, the backward kernels compute the convolution's result
// c (causal_conv.h) again from weight and bias. For kGated, weight and bias must be absent.
bool has_sums(const CausalConvShape& s, const Tensor& weight, const Tensor& bias, const Tensor& bcx) {
  if (s.form != CausalConvShape::Form::kSilu) return weight.absent() && bias.absent();
  return is_kernel(s, weight, bcx) && is_bias(bias, s.channels);
}

}  // namespace

void CausalConvShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, segments > 0 && tokens > 0 && channels > 0 && width > 0 && width <= kMaxWidth);
  PRIMUS_CHECK(kernel, first_of_even >= 0 && first_of_odd >= 0);
}

void CausalConvForward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_rows(shape, bcx, y) && is_kernel(shape, weight, bcx));
  PRIMUS_CHECK(kId, is_bias(bias, shape.channels) && is_first_key(shape, first_key));
  PRIMUS_CHECK(kId, has_before(shape, before));
}

void CausalConvBackwardInput::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_rows(shape, bcx, d_y) && is_kernel(shape, weight, bcx) && same(d_bcx, bcx));
  PRIMUS_CHECK(kId, is_bias(bias, shape.channels) && is_first_key(shape, first_key));
  PRIMUS_CHECK(kId, has_before(shape, before) && (d_after.absent() || is_edge(shape, d_after)));
  PRIMUS_CHECK(kId, d_after.absent() || shape.tokens >= shape.width - 1);
}

void CausalConvBackwardWeight::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_rows(shape, bcx, d_y) && is_first_key(shape, first_key));
  PRIMUS_CHECK(kId, has_before(shape, before) && is_float(d_weight));
  PRIMUS_CHECK(kId, has_sums(shape, weight, bias, bcx));
  PRIMUS_CHECK(kId, d_weight.shape == (of_bias ? Shape{shape.channels} : Shape{shape.channels, shape.width}));
}

void CausalConvEdge::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_float(bcx) && bcx.shape == Shape{shape.rows(), shape.columns()});
  PRIMUS_CHECK(kId, is_edge(shape, edge) && shape.tokens >= shape.width - 1);
}

void CausalConvBackwardEdge::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_rows(shape, bcx, d_y) && is_kernel(shape, weight, bcx));
  PRIMUS_CHECK(kId, is_first_key(shape, first_key) && is_edge(shape, d_edge));
  const bool silu = shape.form == CausalConvShape::Form::kSilu;
  PRIMUS_CHECK(kId, silu ? is_bias(bias, shape.channels) && has_before(shape, before)
                         : bias.absent() && before.absent());
}

void CachedCausalConv::check() const {
  sequences.check(kId);
  const std::int64_t channels = y.cols();
  PRIMUS_CHECK(kId, width > 0 && width <= CausalConvShape::kMaxWidth && channels > 0);
  const CausalConvShape rows{1, y.rows(), channels, width, 0, 0, form};
  PRIMUS_CHECK(kId, are_rows(rows, bcx, y.reshaped({y.rows(), channels})));
  PRIMUS_CHECK(kId, is_kernel(rows, weight, bcx) && is_bias(bias, channels));
  PRIMUS_CHECK(kId, ring.dtype == DType::kF32 && ring.shape.rank() == 3 &&
                        ring.shape[0] == sequences.batch() && ring.shape[1] >= width &&
                        ring.shape[2] == channels);
}

}  // namespace primus::turbo
