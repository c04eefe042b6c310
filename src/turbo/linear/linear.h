// The three matrix products of a linear layer y = x · Wᵀ, with x [tokens, in], W [out, in]. Products
// accumulate in fp32, and a bf16 result is rounded once. Only a weight gradient that accumulates into bf16
// may be rounded before the addition as well (cuBLASLt does so). Two fp16 operands give an fp16 or fp32
// result under the same rules; fp16 does not mix with other types. If an operand is fp32, the product is as
// exact as in fp32 (or as exact as a bf16 result can show), regardless of the units that a device uses.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class GemmRole : std::uint8_t {
  kForward,         // y   [tokens, out] = x  [tokens, in]  · W [out, in]ᵀ
  kInputGradient,   // d_x [tokens, in]  = d_y[tokens, out] · W [out, in]
  kWeightGradient,  // d_W [out, in]     = d_y[tokens, out]ᵀ · x [tokens, in]
};

// Operations fused around the first product of a transformer's branch. In decoding, with a few rows at a
// time, launching kernels costs about as much as reading weights, so the product's kernel also does these
// operations:
//
//   sum = a + delta,  n = RMSNorm(sum),  c = end(n · bᵀ + bias)
//
// Results equal those of RmsNormForward, Gemm, AddBias and Rope or SwigluForward in sequence, each rounded to
// bf16. Devices without launch costs support no fusion, and other devices only the shapes that gain from it.
// If is_taken() returns false, call the separate operators. Only for kForward of at most kMaxRows rows, all
// bf16, without `accumulate`; addresses are multiples of 16.
struct AroundProduct {
  static constexpr std::int64_t kMaxRows = 8, kColumnMultiple = 8;
  // kRope: heads of head_dim columns; the first `heads` are rotated completely, in halves
  // (turbo/rope/rope.h). kSwiglu: gate columns, then up columns; c has half the columns
  // (turbo/swiglu/swiglu.h).
  enum class End : std::uint8_t { kNone, kRope, kSwiglu };

  Tensor norm = {};   // [in]; absent: nothing is fused
  Tensor delta = {};  // [rows, in], or absent
  Tensor sum = {};    // [rows, in] out, not another operand's memory; absent when delta is absent
  float eps = 0;
  Tensor bias = {};  // [out], or absent; not with kSwiglu
  End end = End::kNone;
  // For kRope: [rows] int32, and [max_positions, head_dim] fp32.
  Tensor positions = {}, table = {};
  std::int64_t heads = 0, head_dim = 0;

  bool absent() const { return norm.absent(); }
};

struct Gemm {
  static constexpr KernelId kId = KernelId::kGemm;
  GemmRole role;
  Tensor a;                 // left operand as named in the role, fp32 or bf16; or all fp16
  Tensor b;                 // right operand as named in the role, same types
  Tensor c;                 // result, fp32 or bf16; or fp16
  bool accumulate = false;  // c += instead of c =
  // Multiprocessors of a GPU to leave to a concurrent collective (comm/overlap.h). A hint: cuBLASLt honours
  // it; AMD's libraries, our own products and CPUs ignore it. Results may differ in rounding.
  int spared = 0;
  AroundProduct around = {};
  // The workspace size reported for a call with `around` that a device does not support.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Returns whether the device has a kernel for this product including `around`. Only types, shapes,
// `around.norm` and `around.end` matter.
bool is_taken(Device& device, const Gemm& call);

}  // namespace primus::turbo
