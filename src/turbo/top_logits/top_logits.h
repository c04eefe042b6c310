// The likeliest tokens of each row of logits, so that choosing the next token needs a few numbers on the host
// and not a whole vocabulary of them. Larger logits come first, of equal ones the lower id.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct TopLogits {
  static constexpr KernelId kId = KernelId::kTopLogits;
  static constexpr std::int64_t kMost = 64;  // that a call can be asked for

  Tensor logits;       // [rows, vocab] fp32 or bf16
  std::int64_t vocab;  // ids below this one count; from values.cols() to logits.cols()
  Tensor values;       // [rows, k] fp32 out, k <= kMost
  // [rows, k] int32 out. Where a row has a NaN or +infinity, or nothing but -infinity, all are -1: there is
  // no order then.
  Tensor ids;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
