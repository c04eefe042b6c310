// Finds the top-k logits of each row, or draws one id per row, so that sampling copies a few numbers to the
// host instead of the logits of the complete vocabulary. The top-k logits are in descending order; if logits
// are equal, the lower id comes first.
//
// A draw gives id i the probability exp(logit_i / temperature) / sum, and returns the first id at which the
// sum of the probabilities of ids 0, 1, ... exceeds a given number. A CPU adds in double precision in the
// order of ids. A GPU rounds each term to fp32, so if the given number is within about 1e-6 of such a sum,
// the GPU may return the adjacent id. A draw depends only on its own row.
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
  // Absent: finds the top-k logits. Otherwise [rows, 2] fp64: for each row the number from [0, 1) that
  // decides, and the temperature, at least 0. At temperature 0, the id of the largest logit is returned. k is
  // then 1.
  Tensor draws = {};
  // output: [rows, k] int32. All are -1 if a row has a NaN or +infinity, or consists of -infinity, because
  // such a row has no order.
  Tensor ids;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
