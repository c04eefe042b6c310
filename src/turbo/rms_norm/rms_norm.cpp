#include "turbo/rms_norm/rms_norm.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_statistics(const Tensor& rstd, const Tensor& x) {
  return rstd.dtype == DType::kF32 && rstd.elements() == x.rows();
}

}  // namespace

void RmsNormForward::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, weight.dtype == x.dtype && weight.elements() == x.cols());
  PRIMUS_CHECK(kId, same(y, x) && is_statistics(rstd, x));
  PRIMUS_CHECK(kId, delta.absent() == sum.absent());
  PRIMUS_CHECK(kId, delta.absent() || (same(delta, x) && same(sum, x)));
}

void RmsNormBackwardInput::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, weight.dtype == x.dtype && weight.elements() == x.cols());
  PRIMUS_CHECK(kId, is_statistics(rstd, x));
  PRIMUS_CHECK(kId, same(d_y, x) && same(d_x, x));
  PRIMUS_CHECK(kId, d_sum.absent() || same(d_sum, x));
  PRIMUS_CHECK(kId, d_weight.absent() || (is_float(d_weight) && d_weight.elements() == x.cols()));
}

void RmsNormBackwardWeight::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, is_statistics(rstd, x));
  PRIMUS_CHECK(kId, same(d_y, x));
  PRIMUS_CHECK(kId, is_float(d_weight) && d_weight.elements() == x.cols());
}

}  // namespace primus::turbo
