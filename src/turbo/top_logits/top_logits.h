// Finds the top-k logits of each row, so that sampling copies a few numbers to the host instead of the logits
// of the complete vocabulary. Results are in descending order; if logits are equal, the lower id comes first.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct TopLogits {
  static constexpr KernelId kId = KernelId::kTopLogits;
  static constexpr std::int64_t kMax = 64;  // max. value of k

  Tensor logits;       // [rows, vocab] fp32 or bf16
  std::int64_t vocab;  // ids from `vocab` on are ignored; in [values.cols(), logits.cols()]
  Tensor values;       // output: [rows, k] fp32, k <= kMax
  // output: [rows, k] int32. All are -1 if a row has a NaN or +infinity, or consists of -infinity, because
  // such a row has no order.
  Tensor ids;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
