// A whole product of a linear layer in fp8 (fp8_linear.h has the numbers and what is refused), from operands
// in fp32 or bf16.
#pragma once

#include "turbo/context.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {

// How an operand is scaled: by its own largest magnitude, or with `scales`, as QuantizeFp8 has them.
struct Fp8Scaling {
  Tensor scales = {};
  Tensor largest = {};  // with scales alone; or absent
};

// Both operands are quantised into the context's scratch arena. Forward products sum fast (Fp8Gemm::fast).
struct Fp8Linear {
  GemmRole role;
  Tensor a, b, c;  // as named in the role
  DType a_type = DType::kF8E4M3, b_type = DType::kF8E4M3;
  Fp8Scaling a_scaling = {}, b_scaling = {};
  bool accumulate = false;
  int spared = 0;  // as in Gemm
  double flops() const;
};

// Launches its kernels: it has none of its own.
void launch(Context& context, const Fp8Linear& call);

}  // namespace primus::turbo
