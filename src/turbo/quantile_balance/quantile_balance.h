// Balances experts by quantiles (Kimi K3's report, section 2.3.3, equation 14) instead of by a step's sign:
// an expert's selection bias becomes the value that would have given it its share of the step's tokens. With
// s the sigmoids of the logits, tau_t the (top_k + 1)-th largest of s[t, e] + bias[e], and the margins s[t,
// e] - tau_t,
//   bias[e] = -(the quantile 1 - top_k / experts of e's margins), less the mean over experts if centred.
// Quantiles are read from histograms, which are summed over microbatches and ranks; within a bin, margins
// count as evenly spread.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Bins of equal width from `low` to `high`; values outside count in the first or the last bin.
struct MarginBins {
  float low, high;
};

struct MarginHistogram {
  static constexpr KernelId kId = KernelId::kMarginHistogram;
  MarginBins bins;
  std::int32_t top_k;
  Tensor logits;  // [tokens, experts] fp32
  Tensor bias;    // [experts] fp32
  Tensor counts;  // [experts, bins] int32, added to
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// If nothing was counted, the bias is unchanged.
struct QuantileBiasUpdate {
  static constexpr KernelId kId = KernelId::kQuantileBiasUpdate;
  MarginBins bins;
  std::int32_t top_k;
  Tensor counts;  // [experts, bins] int32
  Tensor bias;    // [experts] fp32, in place
  bool centred;
  float kept;  // weight of the old bias in the new one, in [0, 1)
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
