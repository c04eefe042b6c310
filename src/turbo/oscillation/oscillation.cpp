#include "turbo/oscillation/oscillation.h"

#include "turbo/check.h"
#include "turbo/master_weights.h"

namespace primus::turbo {

void TrackOscillation::check() const {
  const std::int64_t n = moved.elements();
  PRIMUS_CHECK(kId, is_vector(moved, DType::kF32, n) && is_vector(jumped, DType::kF32, n));
  PRIMUS_CHECK(kId, is_vector(working, DType::kBF16, n) && is_vector(before_working, DType::kBF16, n));
  PRIMUS_CHECK(kId, are_masters(param, working, remainder, n));
  PRIMUS_CHECK(kId, are_masters(before_param, before_working, before_remainder, n));
  PRIMUS_CHECK(kId, is_vector(rounded, DType::kBF16, n) && is_vector(before_rounded, DType::kBF16, n));
  PRIMUS_CHECK(kId, is_vector(grad_scale, DType::kF32, 1));
  PRIMUS_CHECK(kId, (snapped.absent() || is_vector(snapped, DType::kI32, 1)) && ratio > 0);
}

}  // namespace primus::turbo
