#include "turbo/head_norm/head_norm.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool valid(const HeadNormShape& s, const Tensor& x, const Tensor& rstd) {
  return s.heads >= 0 && s.kv_heads >= 0 && s.head_dim > 0 && s.normed() * s.head_dim <= x.cols() &&
         (x.dtype == DType::kF32 || x.dtype == DType::kBF16) && rstd.dtype == DType::kF32 &&
         rstd.elements() == x.rows() * s.normed();
}

[[maybe_unused]] bool same(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

}  // namespace

void HeadNormForward::check() const {
  assert(valid(shape, x, rstd) && same(x, y));
  assert(weight.absent() || (weight.dtype == x.dtype && weight.elements() == 2 * shape.head_dim));
}

void HeadNormBackwardInput::check() const {
  assert(valid(shape, x, rstd) && same(x, d_y) && same(x, d_x));
  assert(weight.absent() || (weight.dtype == x.dtype && weight.elements() == 2 * shape.head_dim));
}

void HeadNormBackwardWeight::check() const {
  assert(valid(shape, x, rstd) && same(x, d_y));
  assert(d_weight.dtype == DType::kF32 && d_weight.elements() == 2 * shape.head_dim);
}

}  // namespace primus::turbo
