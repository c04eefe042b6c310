#include "turbo/rms_norm/rms_norm.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

[[maybe_unused]] bool alike(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

[[maybe_unused]] bool is_statistics(const Tensor& rstd, const Tensor& x) {
  return rstd.dtype == DType::kF32 && rstd.elements() == x.rows();
}

}  // namespace

void RmsNormForward::check() const {
  assert(is_float(x.dtype));
  assert(weight.dtype == x.dtype && weight.elements() == x.cols());
  assert(alike(y, x) && is_statistics(rstd, x));
  assert(delta.absent() == sum.absent());
  assert(delta.absent() || (alike(delta, x) && alike(sum, x)));
}

void RmsNormBackwardInput::check() const {
  assert(is_float(x.dtype));
  assert(weight.dtype == x.dtype && weight.elements() == x.cols());
  assert(is_statistics(rstd, x));
  assert(alike(d_y, x) && alike(d_x, x));
  assert(d_sum.absent() || alike(d_sum, x));
}

void RmsNormBackwardWeight::check() const {
  assert(is_float(x.dtype));
  assert(is_statistics(rstd, x));
  assert(alike(d_y, x));
  assert(d_weight.dtype == DType::kF32 && d_weight.elements() == x.cols());
}

}  // namespace primus::turbo
