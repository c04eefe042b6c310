#include "turbo/head_norm/head_norm.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool valid(const HeadNormShape& s, const Tensor& x, const Tensor& rstd) {
  return s.heads >= 0 && s.kv_heads >= 0 && s.head_dim > 0 && s.normed() * s.head_dim <= x.cols() &&
         is_float(x) && rstd.dtype == DType::kF32 && rstd.elements() == x.rows() * s.normed();
}

}  // namespace

void HeadNormForward::check() const {
  PRIMUS_CHECK(kId, valid(shape, x, rstd) && same(x, y));
  PRIMUS_CHECK(kId, weight.absent() || (weight.dtype == x.dtype && weight.elements() == 2 * shape.head_dim));
}

void HeadNormBackwardInput::check() const {
  PRIMUS_CHECK(kId, valid(shape, x, rstd) && same(x, d_y) && same(x, d_x));
  PRIMUS_CHECK(kId, weight.absent() || (weight.dtype == x.dtype && weight.elements() == 2 * shape.head_dim));
}

void HeadNormBackwardWeight::check() const {
  PRIMUS_CHECK(kId, valid(shape, x, rstd) && same(x, d_y));
  PRIMUS_CHECK(kId, is_float(d_weight) && d_weight.elements() == 2 * shape.head_dim);
}

}  // namespace primus::turbo
