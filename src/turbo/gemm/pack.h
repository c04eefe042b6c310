// Packing functions for the operand orders of kernel.h.
#pragma once

#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

struct OperandPackers {
  Kernel::Packers a, b;
};

// fp32 operands from fp32 or bf16 memory, on any CPU, for the tile shapes (mr, nr, kb) in use.
OperandPackers f32_packers_64x64x64(DType source);
OperandPackers f32_packers_4x8x64(DType source);
// From fp32 memory only; needs avx512bw.
OperandPackers f32_packers_64x64x64_avx512();

// bf16 operands in VNNI order, from bf16 memory; need avx512bw.
OperandPackers bf16_packers_32x32x32();
OperandPackers bf16_packers_64x64x64();

}  // namespace primus::turbo::gemm
