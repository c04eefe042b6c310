// The three matrix products of a linear layer y = x · Wᵀ, with x [tokens, in], W [out, in]. Products
// accumulate in fp32, and a bf16 result is rounded once. There is one exception: if a weight gradient
// accumulates into bf16, the product may also be rounded before the addition, as in cuBLASLt. For two fp16
// operands, the result is fp16 or fp32, and the same rules apply. An fp16 operand cannot be combined with an
// operand of another type. If an operand is fp32, the product is as exact as an fp32 product (rounded, if the
// result is bf16), regardless of the matrix units that a device uses.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class GemmRole : std::uint8_t {
  kForward,         // y   [tokens, out] = x  [tokens, in]  · W [out, in]ᵀ
  kInputGradient,   // d_x [tokens, in]  = d_y[tokens, out] · W [out, in]
  kWeightGradient,  // d_W [out, in]     = d_y[tokens, out]ᵀ · x [tokens, in]
};

// Operations fused around the first product of a transformer's branch. In decoding, a product has few rows,
// and launching kernels takes about as long as reading weights. The product's kernel therefore also does
// these operations:
//
//   sum = a + delta,  n = RMSNorm(sum),  c = end(n · bᵀ + bias)
//
// Results equal those of RmsNormForward, Gemm, AddBias and Rope or SwigluForward in sequence, each rounded to
// bf16. Devices without launch costs do not support fusion. Other devices support fusion only for shapes for
// which fusion is faster. If is_taken() returns false, call the separate operators. Fusion is possible only
// for kForward with at most kMaxRows rows, if all tensors are bf16, their addresses are multiples of 16, and
// `accumulate` is false.
struct AroundProduct {
  static constexpr std::int64_t kMaxRows = 8, kColumnMultiple = 8;
  // kRope: the result consists of heads of head_dim columns; the first `heads` heads are rotated completely,
  // in halves (turbo/rope/rope.h). kSwiglu: the product has gate columns, then up columns, and c has half of
  // these columns (turbo/swiglu/swiglu.h).
  enum class End : std::uint8_t { kNone, kRope, kSwiglu };

  Tensor norm = {};   // [in]; absent: nothing is fused
  Tensor delta = {};  // [rows, in], or absent
  Tensor sum = {};    // output: [rows, in]; shares no memory with other operands; absent if delta is absent
  float eps = 0, offset = 0;  // offset: as in RmsNormForward
  Tensor bias = {};           // [out], or absent; must be absent with kSwiglu
  End end = End::kNone;
  // For kRope: `positions` is [rows] int32, `table` is [max_positions, head_dim] fp32.
  Tensor positions = {}, table = {};
  std::int64_t heads = 0, head_dim = 0;

  bool absent() const { return norm.absent(); }
};

struct Gemm {
  static constexpr KernelId kId = KernelId::kGemm;
  GemmRole role;
  Tensor a;                 // left operand of the role, fp32 or bf16 (or fp16, with b in fp16)
  Tensor b;                 // right operand of the role, fp32 or bf16 (or fp16, with a in fp16)
  Tensor c;                 // result, fp32 or bf16 (or fp16, with fp16 operands)
  bool accumulate = false;  // c += instead of c =
  // Number of multiprocessors that the product should leave to a concurrent collective (comm/overlap.h). Only
  // cuBLASLt and batch-invariant GPUs consider this number. AMD's libraries, our other products and CPUs
  // ignore the number. On GPUs that are not batch-invariant, the number may change how results are rounded.
  int spared = 0;
  AroundProduct around = {};
  // The workspace size that a device reports if it does not support the call's `around`.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Returns whether the device has a kernel for this product including `around`. Only types, shapes,
// `around.norm` and `around.end` matter.
bool is_taken(Device& device, const Gemm& call);

}  // namespace primus::turbo
