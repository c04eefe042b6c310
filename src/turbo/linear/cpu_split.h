// fp32 products on matrix units for bf16. An fp32 number is exactly the sum of three bf16 numbers, and a
// product of sums is a sum of products (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations", arXiv:1904.06376). With a bf16 operand this needs
// three products, whose sum rounds like fp32. A bf16 result has a rounding error of 2^-8, so two rounded
// parts of each operand suffice: the three largest of their products omit 2^-14.
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
  // Returns whether `call` has fp32 operands in supported places, and this CPU is faster with three times as
  // many bf16 products.
  static bool suits(const Gemm& call);

  // `direct`: the GEMM of the call's role and shape, without addresses.
  SplitGemm(const cpu::CpuContext& context, const Gemm& call, const GemmArgs& direct);

  std::int64_t workspace_bytes() const;
  // Multiplies; the call's workspace must have workspace_bytes().
  void run() const;

 private:
  const cpu::CpuContext& context_;
  const Gemm& call_;
  GemmArgs product_;                          // the product of the parts
  std::int64_t a_parts_, b_parts_, c_parts_;  // elements of each operand's parts; 0: not split
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
