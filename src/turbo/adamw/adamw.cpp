#include "turbo/adamw/adamw.h"

#include "turbo/check.h"
#include "turbo/master_weights.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {

void AdamW::check() const {
  const std::int64_t n = grad.elements();
  PRIMUS_CHECK(kId, is_float_vector(grad, n));
  PRIMUS_CHECK(kId, is_float_vector(exp_avg, n) && is_float_vector(exp_avg_sq, n));
  PRIMUS_CHECK(kId, is_vector(grad_scale, DType::kF32, 1));
  PRIMUS_CHECK(kId, are_masters(param, working, remainder, n));
  PRIMUS_CHECK(kId, is_step_scalars(scalars));
}

void SumOfSquares::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, is_vector(out, DType::kF64, 1));
}

void ClipCoefficient::check() const {
  PRIMUS_CHECK(kId, is_vector(sum_of_squares, DType::kF64, 1));
  PRIMUS_CHECK(kId, is_vector(norm, DType::kF32, 1) && is_vector(scale, DType::kF32, 1));
  PRIMUS_CHECK(kId, max_norm >= 0);
}

}  // namespace primus::turbo
