// Balances experts by quantiles (Kimi K3's report, section 2.3.3, equation 14) instead of by steps of fixed
// size. With the new selection bias, an expert would have received 1 / experts of the choices of this step.
// Let s be the sigmoids of the logits, tau_t the (top_k + 1)-th largest of s[t, e] + bias[e], and s[t, e] -
// tau_t the margins of expert e. Then
//   bias[e] = -(quantile 1 - top_k / experts of the margins of e), minus the mean over experts if `centred`.
// Quantiles are computed from histograms that are summed over microbatches and ranks. The margins of a bin
// are assumed to be evenly distributed within the bin.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Bins of equal width from `low` to `high`; values outside this range are counted in the first or the last
// bin.
struct MarginBins {
  float low, high;
};

struct MarginHistogram {
  static constexpr KernelId kId = KernelId::kMarginHistogram;
  MarginBins bins;
  std::int32_t top_k;
  Tensor logits;  // [tokens, experts] fp32
  Tensor bias;    // [experts] fp32
  Tensor counts;  // [experts, bins] int32; the call adds to it
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// Updates the bias from the counts. If all counts are 0, the bias is unchanged.
struct QuantileBiasUpdate {
  static constexpr KernelId kId = KernelId::kQuantileBiasUpdate;
  MarginBins bins;
  std::int32_t top_k;
  Tensor counts;  // [experts, bins] int32
  Tensor bias;    // [experts] fp32, updated in place
  bool centred;
  float kept;  // weight of the old bias in the new bias, in [0, 1)
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
