// The three matrix products of a linear layer y = x · Wᵀ, with x [tokens, in], W [out, in]. Products
// accumulate in fp32, and a bf16 result is rounded once; only a weight gradient that is added to a bf16 one
// may be rounded before the addition, too (cuBLASLt does so). Where an operand is fp32, they are as exact as
// fp32 whatever the other, or, into a bf16 result, as exact as that can show, whatever units a device takes
// for them.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class GemmRole : std::uint8_t {
  kForward,         // y   [tokens, out] = x  [tokens, in]  · W [out, in]ᵀ
  kInputGradient,   // d_x [tokens, in]  = d_y[tokens, out] · W [out, in]
  kWeightGradient,  // d_W [out, in]     = d_y[tokens, out]ᵀ · x [tokens, in]
};

struct Gemm {
  static constexpr KernelId kId = KernelId::kGemm;
  GemmRole role;
  Tensor a;                 // left operand as named in the role, fp32 or bf16
  Tensor b;                 // right operand as named in the role, fp32 or bf16
  Tensor c;                 // result, fp32 or bf16
  bool accumulate = false;  // c += instead of c =
  // Multiprocessors of a GPU to leave to a collective that runs beside (comm/beside.h). A wish: libraries
  // grant it, our own products and CPUs do not know it. Results may differ in rounding.
  int spared = 0;
  Tensor workspace;
  void check() const;
  double flops() const;
};

}  // namespace primus::turbo
