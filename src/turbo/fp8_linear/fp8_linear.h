// The three matrix products of a linear layer (turbo/linear/linear.h) with FP8 operands, quantized with one
// scale per tensor. The scale comes from the tensor's own largest magnitude (Primus-Turbo's TENSORWISE
// granularity, Transformer Engine's Float8CurrentScaling) or from the largest magnitudes of earlier steps
// (Transformer Engine's DelayedScaling). As in "FP8 Formats for Deep Learning" (Micikevicius et al., 2022),
// activations and weights are e4m3, and gradients may be e5m2.
//
// This file has the kernels; fp8_product.h has the complete product from fp32 or bf16 operands.
//
//   inverse_a, a8 = quantise(a)    inverse_b, b8 = quantise(b)    c (+)= (a8 · b8) * inverse_a * inverse_b
//
// Sums are in fp32. Tensor cores of GPUs accumulate about 128 terms at a time with fewer bits (about 14 on
// Hopper). With Fp8Gemm::fast, the complete sum has fewer bits (DeepSeek-V3's report, section 3.3.2).
//
// If an operand has an infinite element or a NaN, every element of the result is NaN. With delayed scales,
// this holds only for the elements of the result that depend on the infinite element or the NaN. A product
// with two e5m2 operands is not allowed, because GPUs do not support such a product. All addresses, including
// those of scales, are multiples of 16. Every extent of an operand must be a multiple of 16; otherwise the
// launch throws Error(kInvalid). The workspace functions throw Error(kInvalid) on an NVIDIA GPU without fp8
// (below compute capability 8.9), and Error(kUnsupported) on AMD GPUs.
#pragma once

#include "tensor/tensor.h"
#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Throws Error(kInvalid) if an operand must not have these extents. check() of the operators calls this
// function. Callers may also call this function earlier.
void check_fp8_extents(std::int64_t rows, std::int64_t cols);

// Quantizes a matrix to codes in the matrix's own layout, to transposed codes, or to both layouts in one
// pass. Tensor cores require both operands to be contiguous along the summed dimension. Therefore weight
// gradients use the transposed codes of both operands.
struct QuantizeFp8 {
  static constexpr KernelId kId = KernelId::kQuantizeFp8;
  Tensor x;                // [rows, cols] fp32 or bf16
  Tensor codes = {};       // [rows, cols] e4m3 or e5m2, or absent
  Tensor transposed = {};  // [cols, rows] of the same type, or absent if `codes` is not
  Tensor scales;           // [2] fp32: the factor from codes to values, and its inverse
  // If false, the scales are outputs: a separate pass over x computes the scales. If true, the scales are
  // inputs: finite values beyond the range saturate, and infinities become NaN.
  bool known = false;
  // Optional, only if `known`: [1] int32, the bits of a magnitude m. The call sets it to max(m, largest
  // magnitude of x).
  Tensor largest = {};
  void check() const;
  double flops() const { return 0; }
};

// Computes the scales of the next step for x, W and d_y of linear layers, from the largest magnitudes of this
// step and of earlier steps (delayed_fp8_scales). The rules are as in Transformer Engine's DelayedScaling.
// x and W are e4m3.
struct UpdateFp8Scales {
  static constexpr KernelId kId = KernelId::kUpdateFp8Scales;
  static constexpr std::int64_t kTensors = 3;  // x, W, d_y
  static constexpr std::int64_t kPlace = 4;    // elements per tensor in `scales`
  Tensor largest;  // [layers, kTensors] int32: bits of this step's largest magnitudes
  Tensor history;  // [layers, kTensors, steps] fp32: largest magnitudes of recent steps; the most recent step
                   // is first
  // [layers, kTensors, kPlace] fp32: elements 0 and 1 are the scales that QuantizeFp8 reads; elements 2 and 3
  // are padding, so that addresses are multiples of 16.
  Tensor scales;
  Tensor norm;  // [1] fp32: gradient norm of this step. If it is not finite, the call does nothing
  DType gradients = DType::kF8E4M3;  // the type of d_y
  // true: use the magnitude of this step; false: use the largest magnitude in `history`.
  bool most_recent = false;
  int margin = 0;  // the largest magnitude is mapped to (largest number of the format) / 2^margin
  void check() const;
  double flops() const { return 0; }
};

// c (+)= (a · bᵀ) * a_scales[0] * b_scales[0].
struct Fp8Gemm {
  static constexpr KernelId kId = KernelId::kFp8Gemm;
  Tensor a, b;                // [m, k], [n, k]: codes, not both e5m2
  Tensor a_scales, b_scales;  // written by QuantizeFp8
  Tensor c;                   // [m, n] fp32 or bf16
  bool accumulate = false;    // if c is bf16, GPU libraries round the product, and then the sum
  bool fast = false;          // allow less exact, faster sums on GPUs; suitable for forward products
  int spared = 0;             // as in Gemm
  Tensor workspace;
  void check() const;
  double flops() const;
};

}  // namespace primus::turbo
