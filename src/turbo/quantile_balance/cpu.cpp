#include <algorithm>
#include <functional>
#include <vector>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/quantile_balance/formula.h"
#include "turbo/quantile_balance/quantile_balance.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

std::int64_t histogram_workspace(CpuContext&, const MarginHistogram& a) {
  return a.logits.rows() * static_cast<std::int64_t>(sizeof(float));
}

// Computes cutoffs token by token, then histograms expert by expert.
void histogram(CpuContext& context, const MarginHistogram& a) {
  const std::int64_t tokens = a.logits.rows(), experts = a.logits.cols(), bins = a.counts.cols();
  const float *logits = context.data<const float>(a.logits), *bias = context.data<const float>(a.bias);
  float* const cutoffs = context.data<float>(a.workspace);
  const std::int64_t rank = std::min<std::int64_t>(a.top_k, experts - 1);
  parallel_ranges(context, tokens, 8 * experts * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> biased(static_cast<std::size_t>(experts));
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t e = 0; e < experts; ++e)
        biased[static_cast<std::size_t>(e)] = sigmoid(logits[t * experts + e]) + bias[e];
      std::nth_element(biased.begin(), biased.begin() + rank, biased.end(), std::greater<>());
      cutoffs[t] = biased[static_cast<std::size_t>(rank)];
    }
  });
  const MarginRange range{a.bins.low, a.bins.high, bins};
  auto* const counts = context.data<std::int32_t>(a.counts);
  parallel_ranges(context, experts, 8 * tokens * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float margin = sigmoid(logits[t * experts + e]) - cutoffs[t];
        ++counts[e * bins + range.bin_of(margin)];
      }
    }
  });
}

void update(CpuContext& context, const QuantileBiasUpdate& a) {
  const std::int64_t experts = a.counts.rows(), bins = a.counts.cols();
  const auto* counts = context.data<const std::int32_t>(a.counts);
  if (std::all_of(counts, counts + bins, [](std::int32_t n) { return n == 0; })) return;
  const double share = 1 - static_cast<double>(a.top_k) / static_cast<double>(experts);
  const MarginRange range{a.bins.low, a.bins.high, bins};
  std::vector<double> biases;
  double sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    biases.push_back(range.balanced(counts + e * bins, share));
    sum += biases.back();
  }
  const double mean = a.centred ? sum / static_cast<double>(experts) : 0;
  float* bias = context.data<float>(a.bias);
  for (std::int64_t e = 0; e < experts; ++e)
    bias[e] = averaged_bias(bias[e], a.kept, biases[static_cast<std::size_t>(e)] - mean);
}

}  // namespace

void register_quantile_balance(KernelTable& table) {
  table.add<MarginHistogram, CpuContext, &histogram, &histogram_workspace>();
  table.add<QuantileBiasUpdate, CpuContext, &update>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
