// Many linear layers at once, each applied to its own range of rows: the experts of a mixture of experts.
// Rows are sorted by expert. Kernels read the start of each expert's rows from device memory. Therefore
// shapes do not depend on the routing.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {

// Expert e has rows [offsets[e], offsets[e+1]) of x [rows, in], y [rows, out] and their gradients. Computes
// for each expert, as Gemm does:
//   kForward         c [rows, out]  = a [rows, in]  · b[e] [out, in]ᵀ
//   kInputGradient   c [rows, in]   = a [rows, out] · b[e] [out, in]
//   kWeightGradient  c[e] [out, in] = a [rows of e, out]ᵀ · b [rows of e, in]
// An expert without rows has a weight gradient of zero. Rows from offsets[experts] on belong to no expert.
// The operands may have any contents in these rows, and these rows of c are not written. The caller may pass
// activations as a matrix of tokens with row indices: row r of the operand is then row a_rows[r] of the
// matrix a.
struct GroupedGemm {
  static constexpr KernelId kId = KernelId::kGroupedGemm;
  GemmRole role;
  Tensor a, b;     // operands, both fp32 or both bf16; weights are [experts, out, in]
  Tensor c;        // fp32 or bf16
  Tensor offsets;  // [experts + 1] int32, starts at 0, non-decreasing, at most `rows`
  // [rows] int32, not read from offsets[experts] on; absent: rows are not picked. b_rows is only for the
  // weight gradient.
  Tensor a_rows, b_rows;
  bool accumulate = false;  // c += instead of c =; for the weight gradient only
  Tensor workspace;
  void check() const;
  std::int64_t rows() const { return a_rows.absent() ? a.rows() : a_rows.elements(); }
  double flops() const;  // counts all rows, including rows without an expert
};

// y[r, :] = x[r, :] + bias[e, :] for the rows r of each expert e. Rows without an expert are not
// written.
struct GroupedBias {
  static constexpr KernelId kId = KernelId::kGroupedBias;
  Tensor x;        // [rows, n] fp32 or bf16
  Tensor bias;     // [experts, n], x's type
  Tensor y;        // [rows, n], x's type; may be x
  Tensor offsets;  // as in GroupedGemm
  void check() const;
  double flops() const { return 0; }
};

// d_bias[e, :] (+)= sum of d_y[r, :] over the rows of expert e, in row order.
struct GroupedBiasBackward {
  static constexpr KernelId kId = KernelId::kGroupedBiasBackward;
  Tensor d_y;       // [rows, n] fp32 or bf16
  Tensor d_bias;    // [experts, n] fp32
  Tensor offsets;   // as in GroupedGemm
  bool accumulate;  // false: assigns d_bias, which is zero for experts without rows
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
