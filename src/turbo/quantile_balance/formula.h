// Computes histograms of routing margins, and biases from the histograms; shared by the kernels of all
// devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The histogram's range: `bins` bins between low and high. Margins outside this range are counted in the
// first or the last bin.
struct MarginRange {
  float low, high;
  std::int64_t bins;

  PRIMUS_FORMULA std::int64_t bin_of(float margin) const {
    const float bin = ::floorf((margin - low) / ((high - low) / static_cast<float>(bins)));
    return static_cast<std::int64_t>(::fminf(::fmaxf(bin, 0.0F), static_cast<float>(bins - 1)));
  }

  // Returns minus the quantile `share` of one expert's margins. The fraction `share` of the margins is below
  // this quantile.
  PRIMUS_FORMULA double balanced(const std::int32_t* counts, double share) const {
    std::int64_t total = 0, before = 0, bin = 0;
    for (std::int64_t i = 0; i < bins; ++i) total += counts[i];
    const double target = static_cast<double>(total) * share;
    while (bin + 1 < bins && static_cast<double>(before + counts[bin]) < target) before += counts[bin++];
    const double count = counts[bin] > 1 ? static_cast<double>(counts[bin]) : 1.0;
    const double within = (target - static_cast<double>(before)) / count;
    const double held = within < 0 ? 0.0 : within > 1 ? 1.0 : within;
    const double from = static_cast<double>(low), to = static_cast<double>(high);
    return -(from + (to - from) / static_cast<double>(bins) * (static_cast<double>(bin) + held));
  }
};

// Returns the new bias, the mean of bias and target with weights `kept` and 1 - `kept`.
PRIMUS_FORMULA float averaged_bias(float bias, float kept, double target) {
  return kept * bias + (1.0F - kept) * static_cast<float>(target);
}

}  // namespace primus::turbo::PRIMUS_KERNELS
