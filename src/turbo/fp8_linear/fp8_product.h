// A product of a linear layer in fp8, including the quantization of its fp32 or bf16 operands. fp8_linear.h
// describes numerics and limits.
#pragma once

#include "turbo/context.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {

// The scaling of an operand: from the operand's own largest magnitude, or with the given `scales`, as in
// QuantizeFp8.
struct Fp8Scaling {
  Tensor scales = {};
  Tensor largest = {};  // as in QuantizeFp8: optional, only with `scales`
};

// Both operands are quantized into the context's scratch arena. Forward products use Fp8Gemm::fast.
struct Fp8Linear {
  GemmRole role;
  Tensor a, b, c;  // the operands named in the role
  DType a_type = DType::kF8E4M3, b_type = DType::kF8E4M3;
  Fp8Scaling a_scaling = {}, b_scaling = {};
  bool accumulate = false;
  int spared = 0;  // as in Gemm
  double flops() const;
};

// Launches the quantizations and the product; Fp8Linear itself has no kernel.
void launch(Context& context, const Fp8Linear& call);

}  // namespace primus::turbo
