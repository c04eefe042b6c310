#include "turbo/adamw/adamw.h"

#include <cstdint>

#include "turbo/block_moments.h"
#include "turbo/check.h"
#include "turbo/master_weights.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {

namespace {

// Returns whether `moment` and `scale` hold n elements of a moment, either as 8-bit codes of type `in_8_bits`
// with scales or as floating-point numbers without scales.
bool is_moment(const Tensor& moment, const Tensor& scale, DType in_8_bits, std::int64_t n) {
  if (!has_block_scales(moment.dtype)) return is_float_vector(moment, n) && scale.absent();
  return is_vector(moment, in_8_bits, n) && n % kMomentBlock == 0 &&
         is_vector(scale, DType::kBF16, n / kMomentBlock);
}

// Returns whether kernels can read a block's elements 16 bytes at a time.
bool is_aligned(const Tensor& tensor) {
  return tensor.absent() || reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

}  // namespace

void AdamW::check() const {
  const std::int64_t n = grad.elements();
  PRIMUS_CHECK(kId, is_float_vector(grad, n));
  PRIMUS_CHECK(kId, is_moment(exp_avg, exp_avg_scale, DType::kF8E4M3, n));
  PRIMUS_CHECK(kId, is_moment(exp_avg_sq, exp_avg_sq_scale, DType::kU8, n));
  PRIMUS_CHECK(kId, (exp_avg_scale.absent() && exp_avg_sq_scale.absent()) ||
                        (is_aligned(param) && is_aligned(grad) && is_aligned(exp_avg) &&
                         is_aligned(exp_avg_sq) && is_aligned(working) && is_aligned(remainder)));
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
