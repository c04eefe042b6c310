#include "turbo/muon/muon.h"

#include "turbo/check.h"
#include "turbo/master_weights.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {

void MuonMomentum::check() const {
  const std::int64_t n = grad.elements();
  PRIMUS_CHECK(kId, is_float_vector(grad, n) && is_vector(momentum, DType::kF32, n));
  PRIMUS_CHECK(kId, is_vector(direction, DType::kF32, n) && is_vector(grad_scale, DType::kF32, 1));
}

void MuonNormalize::check() const {
  PRIMUS_CHECK(kId, is_vector(x, DType::kF32, x.elements()) && is_vector(sum_of_squares, DType::kF64, 1));
  PRIMUS_CHECK(kId, is_float(out) && out.elements() == x.elements());
}

void MuonPolynomial::check() const {
  PRIMUS_CHECK(kId, gram.dtype == DType::kF32 && gram.shape.rank() == 2 && gram.rows() == gram.cols());
  PRIMUS_CHECK(kId, square.dtype == DType::kF32 && square.shape == gram.shape);
  PRIMUS_CHECK(kId, is_float(out) && out.shape == gram.shape);
}

void MuonUpdate::check() const {
  const std::int64_t n = direction.elements();
  PRIMUS_CHECK(kId, is_float(direction));
  PRIMUS_CHECK(kId, is_vector(grad_scale, DType::kF32, 1));
  PRIMUS_CHECK(kId, are_masters(param, working, remainder, n));
  PRIMUS_CHECK(kId, is_step_scalars(scalars));
}

}  // namespace primus::turbo
