// Expands weights of 4 bits (four_bit_format.h) to fp32 or bf16.
#pragma once

#include "tensor/tensor.h"
#include "turbo/four_bit/four_bit_format.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// out = the numbers of `count` quantised tensors with equally many elements. A number is the product of its
// code's value and its block's factor in fp32, rounded to out's type.
struct ExpandFourBit {
  static constexpr KernelId kId = KernelId::kExpandFourBit;
  Tensor packed;       // [count, (elements + 1) / 2] uint8
  Tensor factors;      // [count, blocks] fp32 or, with double quantisation, [count, nested factors] fp32
  Tensor codes = {};   // [count, blocks] uint8: codes of factors; absent without double quantisation
  Tensor offset = {};  // [count] fp32; absent without double quantisation
  // [16] fp32: code_values(). With double quantisation [16 + 256]: then nested_values().
  Tensor table;
  Tensor out;  // [count, elements] fp32 or bf16
  std::int64_t block;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
