#include "turbo/adamw/adamw.h"

#include <cassert>

#include "turbo/step_scalars.h"

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_vector(const Tensor& tensor, DType dtype, std::int64_t n) {
  return tensor.dtype == dtype && tensor.elements() == n;
}

}  // namespace

void AdamW::check() const {
  [[maybe_unused]] const std::int64_t n = param.elements();
  assert(is_vector(param, DType::kF32, n) && is_vector(grad, DType::kF32, n));
  assert(is_vector(exp_avg, DType::kF32, n) && is_vector(exp_avg_sq, DType::kF32, n));
  assert(is_vector(grad_scale, DType::kF32, 1));
  assert(working.absent() || is_vector(working, DType::kBF16, n));
  assert(is_step_scalars(scalars));
}

void SumOfSquares::check() const {
  assert(x.dtype == DType::kF32);
  assert(is_vector(out, DType::kF64, 1));
}

void ClipCoefficient::check() const {
  assert(is_vector(sum_of_squares, DType::kF64, 1));
  assert(is_vector(norm, DType::kF32, 1) && is_vector(scale, DType::kF32, 1));
  assert(max_norm >= 0);
}

}  // namespace primus::turbo
