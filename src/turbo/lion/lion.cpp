#include "turbo/lion/lion.h"

#include "turbo/check.h"
#include "turbo/master_weights.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {

void Lion::check() const {
  const std::int64_t n = grad.elements();
  PRIMUS_CHECK(kId, is_float_vector(grad, n));
  PRIMUS_CHECK(kId, is_vector(exp_avg, DType::kF32, n) && is_vector(grad_scale, DType::kF32, 1));
  PRIMUS_CHECK(kId, are_masters(param, working, remainder, n));
  PRIMUS_CHECK(kId, is_step_scalars(scalars));
}

}  // namespace primus::turbo
