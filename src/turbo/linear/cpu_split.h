// Products of fp32 numbers on matrix units for bf16: an fp32 number is the sum of three bf16 numbers,
// exactly, and a product of sums is a sum of products (Henry, Tang and Heinecke, "Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations", arXiv:1904.06376). Times a bf16 number
// that is three products, whose sums round as fp32 does. Where the result is bf16, which rounds by 2^-8, two
// rounded parts of each are enough: the three largest of their products leave out 2^-14.
//
// Differences to a product in fp32: infinities may come out as NaN, the largest numbers (above 3.39e38) as
// infinities, and numbers below 1e-33 lose digits.
#pragma once

#include "device/cpu/cpu_device.h"
#include "turbo/gemm/gemm.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

class SplitGemm {
 public:
  // Whether `call` has fp32 operands in places known here, and this CPU is faster with three times as many
  // products of bf16.
  static bool suits(const Gemm& call);

  // `direct`: the GEMM of the call's role and shape, without addresses.
  SplitGemm(const cpu::CpuContext& context, const Gemm& call, const GemmArgs& direct);

  std::int64_t workspace_bytes() const;
  // With the call's workspace of so many bytes.
  void run() const;

 private:
  const cpu::CpuContext& context_;
  const Gemm& call_;
  GemmArgs product_;                          // of the parts
  std::int64_t a_parts_, b_parts_, c_parts_;  // elements of the parts of each, 0: it has none
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
