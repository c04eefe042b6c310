// fp32 products on matrix units for bf16. An fp32 number is exactly the sum of three bf16 numbers (Henry,
// Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", arXiv:1904.06376). An fp32 product is therefore a sum of bf16 products. If the second
// operand is bf16, three bf16 products are as exact as an fp32 product. If both operands are fp32 and the
// result is bf16, two rounded parts per operand suffice. The three largest of the four products of these
// parts have a relative error of 2^-14; the rounding error of the result is 2^-8.
//
// Differences from an fp32 product: infinities may become NaN, the largest numbers (above 3.39e38) become
// infinite, and numbers below 1e-33 lose digits.
#pragma once

#include "device/cpu/cpu_device.h"
#include "turbo/gemm/gemm.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

class SplitGemm {
 public:
  // Returns whether this class should compute `call`. It must support the types of `call`, and three bf16
  // products must be faster on this CPU than one fp32 product.
  static bool suits(const Gemm& call);

  // `direct` is the GEMM with the role and the shape of the call, without addresses.
  SplitGemm(const cpu::CpuContext& context, const Gemm& call, const GemmArgs& direct);

  std::int64_t workspace_bytes() const;
  // Computes the product. The workspace of the call must have workspace_bytes().
  void run() const;

 private:
  const cpu::CpuContext& context_;
  const Gemm& call_;
  GemmArgs product_;  // the product of the parts
  // Number of elements in the parts of each operand; 0: the operand is not split.
  std::int64_t a_parts_, b_parts_, c_parts_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
