// The three matrix products of a linear layer (turbo/linear/linear.h) with operands of 8 bits, quantised with
// one scale for each tensor. Its own largest magnitude decides it (Primus-Turbo's TENSORWISE granularity,
// Transformer Engine's Float8CurrentScaling), or those of steps before (Transformer Engine's DelayedScaling).
// As in "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), activations and weights are e4m3, and
// gradients may be e5m2.
//
// Here are its kernels; fp8_product.h has the product from operands in fp32 or bf16.
//
//   inverse_a, a8 = quantise(a)    inverse_b, b8 = quantise(b)    c (+)= (a8 · b8) * inverse_a * inverse_b
//
// Sums are in fp32. A GPU's tensor cores keep fewer digits of them: about 14 bits within some 128 terms on
// Hopper, or over all of them with Fp8Gemm::fast (DeepSeek-V3's report, section 3.3.2).
//
// An operand with an infinite element or a NaN makes every element of the result NaN; with a scale of steps
// before, those that this element is a term of. No product takes two
// operands in e5m2: GPUs have none. Addresses, those of scales too, are multiples of 16. So
// is every extent of an operand: launching another is an Error(kInvalid). A GPU without fp8, one of NVIDIA
// below compute capability 8.9, is an Error(kInvalid), too, when workspaces are asked for, and one of AMD an
// Error(kUnsupported) so far.
#pragma once

#include "tensor/tensor.h"
#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Throws Error(kInvalid) for an operand of these extents that is none. Checks of operators call it; whoever
// wants to know earlier may, too.
void check_fp8_extents(std::int64_t rows, std::int64_t cols);

// Codes of a matrix, as it lies, transposed, or both from one pass. Tensor cores want both operands with the
// dimension that is summed over contiguous, so weight gradients take transposed codes of both.
struct QuantizeFp8 {
  static constexpr KernelId kId = KernelId::kQuantizeFp8;
  Tensor x;                // [rows, cols] fp32 or bf16
  Tensor codes = {};       // [rows, cols] e4m3 or e5m2, or absent
  Tensor transposed = {};  // [cols, rows] of the same type, or absent; not both
  Tensor scales;           // [2] fp32: what codes are multiplied with to be numbers again, and its inverse
  // False: x decides the scales, in a pass of its own. True: they are there. Finite numbers beyond the range
  // become its ends then, and infinite ones become NaN.
  bool known = false;
  // Where scales are known: [1] int32, the bits of a magnitude, which become those of x's largest where that
  // is larger. Or absent.
  Tensor largest = {};
  void check() const;
  double flops() const { return 0; }
};

// The scales of the next step, for x, W and d_y of linear layers, from the largest magnitudes of this step
// and of those before (delayed_fp8_scales; the rules are those of Transformer Engine's DelayedScaling). x and
// W are e4m3.
struct UpdateFp8Scales {
  static constexpr KernelId kId = KernelId::kUpdateFp8Scales;
  static constexpr std::int64_t kTensors = 3;  // x, W, d_y
  static constexpr std::int64_t kPlace = 4;    // numbers of a tensor in `scales`
  Tensor largest;                              // [layers, kTensors] int32: the bits of this step's magnitudes
  Tensor history;  // [layers, kTensors, steps] fp32: the last steps' magnitudes; this step's comes first
  // [layers, kTensors, kPlace] fp32: the first two of each place are as QuantizeFp8 reads them; the others
  // keep addresses multiples of 16.
  Tensor scales;
  Tensor norm;  // [1] fp32: of this step's gradients. Where it is not finite, nothing changes
  DType gradients = DType::kF8E4M3;  // the type of d_y
  bool most_recent = false;          // true: this step's magnitude decides, false: the largest in the history
  int margin = 0;                    // magnitudes shall stay 2^margin below the format's largest number
  void check() const;
  double flops() const { return 0; }
};

// c (+)= (a · bᵀ) * a_scales[0] * b_scales[0].
struct Fp8Gemm {
  static constexpr KernelId kId = KernelId::kFp8Gemm;
  Tensor a, b;                // [m, k], [n, k]: codes, not both e5m2
  Tensor a_scales, b_scales;  // as QuantizeFp8 wrote them
  Tensor c;                   // [m, n] fp32 or bf16
  bool accumulate = false;    // to a bf16 result a GPU's library rounds before it adds, and after
  bool fast = false;          // sums may be less exact, as forward products bear it; a GPU is faster so
  int spared = 0;             // as in Gemm
  Tensor workspace;
  void check() const;
  double flops() const;
};

}  // namespace primus::turbo
