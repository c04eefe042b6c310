// Helpers for the check() of an operator's arguments. launch() calls check() before every kernel, in every
// build.
//
//   PRIMUS_CHECK(kId, is_float(x) && same(y, x));   "Rope: check failed: is_float(x) && same(y, x)"
#pragma once

#include "base/check.h"
#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

[[noreturn]] void check_failed(KernelId kernel, const char* condition);

// Returns whether the type is one that most operators accept: fp32 or bf16.
inline bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

// Also true for fp16, which products and attention accept for benchmarks. Training would need loss scaling.
inline bool is_operand(const Tensor& tensor) { return is_float(tensor) || tensor.dtype == DType::kF16; }

// Returns whether a tensor has this type and the shape [n]. Flat buffers and scalars of optimizers have such
// shapes.
inline bool is_vector(const Tensor& tensor, DType dtype, std::int64_t n) {
  return !tensor.absent() && tensor.dtype == dtype && tensor.elements() == n;
}

// Like is_vector(), but for a tensor of type fp32 or bf16.
inline bool is_float_vector(const Tensor& tensor, std::int64_t n) {
  return is_vector(tensor, DType::kF32, n) || is_vector(tensor, DType::kBF16, n);
}

inline bool same(const Tensor& a, const Tensor& b) { return a.dtype == b.dtype && a.shape == b.shape; }

}  // namespace primus::turbo
