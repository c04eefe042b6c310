// The three matrix products of a linear layer y = x · Wᵀ, with x [tokens, in], W [out, in]. Products
// accumulate in fp32, and a bf16 result is rounded once; only a weight gradient that is added to a bf16 one
// may be rounded before the addition, too (cuBLASLt does so). Operands that are both fp16 give results in
// fp16 or fp32, likewise; beside other types fp16 is not taken. Where an operand is fp32, they are as exact
// as fp32 whatever the other, or, into a bf16 result, as exact as that can show, whatever units a device
// takes for them.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class GemmRole : std::uint8_t {
  kForward,         // y   [tokens, out] = x  [tokens, in]  · W [out, in]ᵀ
  kInputGradient,   // d_x [tokens, in]  = d_y[tokens, out] · W [out, in]
  kWeightGradient,  // d_W [out, in]     = d_y[tokens, out]ᵀ · x [tokens, in]
};

// What is around the first product of a transformer's branch. While a model decodes, a few rows at a time,
// starting kernels costs about as much as reading weights does, so the product's kernel does it on its way:
//
//   sum = a + delta,  n = RMSNorm(sum),  c = end(n · bᵀ + bias)
//
// The numbers are those of RmsNormForward, Gemm, AddBias and Rope or SwigluForward one after the other, each
// rounded to bf16. Devices without such costs take none of it, others only the shapes that gain by it: ask
// is_taken(), and call those operators instead. For kForward of at most kMostRows rows, all bf16, without
// `accumulate`; addresses are multiples of 16.
struct AroundProduct {
  static constexpr std::int64_t kMostRows = 8, kColumnMultiple = 8;
  // kRope: heads of head_dim columns, of which the first `heads` are rotated as a whole, in halves
  // (turbo/rope/rope.h). kSwiglu: gate and up, side by side; c has half the columns (turbo/swiglu/swiglu.h).
  enum class End : std::uint8_t { kNone, kRope, kSwiglu };

  Tensor norm = {};   // [in]; absent: there is nothing around the product
  Tensor delta = {};  // [rows, in], or absent
  Tensor sum = {};    // [rows, in] out, no other operand's memory; absent when delta is absent
  float eps = 0;
  Tensor bias = {};  // [out], or absent; not with kSwiglu
  End end = End::kNone;
  // Of kRope: [rows] int32, and [max_positions, head_dim] fp32.
  Tensor positions = {}, table = {};
  std::int64_t heads = 0, head_dim = 0;

  bool absent() const { return norm.absent(); }
};

struct Gemm {
  static constexpr KernelId kId = KernelId::kGemm;
  GemmRole role;
  Tensor a;                 // left operand as named in the role, fp32 or bf16; or all fp16,
  Tensor b;                 // right operand as named in the role, likewise
  Tensor c;                 // result, fp32 or bf16; or fp16
  bool accumulate = false;  // c += instead of c =
  // Multiprocessors of a GPU to leave to a collective that runs beside (comm/beside.h). A wish: cuBLASLt
  // grants it, AMD's libraries, our own products and CPUs do not know it. Results may differ in rounding.
  int spared = 0;
  AroundProduct around = {};
  // A call with `around` that a device does not take needs this much workspace.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Whether the device has a kernel for this product with what is around it; only types and shapes,
// `around.norm` and `around.end` matter.
bool is_taken(Device& device, const Gemm& call);

}  // namespace primus::turbo
