#include <algorithm>
#include <cmath>

#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/preference_loss/formula.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void document_sums(CpuContext& context, const DocumentSums& a) {
  const float *losses = context.data<const float>(a.losses), *factors = context.data<const float>(a.factors);
  const auto* starts = context.data<const std::int32_t>(a.starts);
  const float* collisions = a.collisions.absent() ? nullptr : context.data<const float>(a.collisions);
  auto* sums = context.data<double>(a.sums);
  const std::int64_t documents = a.sums.elements();
  const std::int64_t mean = a.losses.elements() / std::max<std::int64_t>(documents, 1) + 1;
  parallel_ranges(context, documents, 2 * mean * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) {
      sums[d] = -sum_doubles(starts[d], starts[d + 1], [&](std::int64_t t) {
        if (factors[t] == 0) return 0.0;
        const double loss = static_cast<double>(losses[t]) +
                            (collisions ? std::log(static_cast<double>(collisions[t])) : 0.0);
        return static_cast<double>(factors[t]) * loss;
      });
    }
  });
}

std::int64_t loss_workspace(CpuContext&, const PreferenceLoss& a) {
  return 4 * a.roles.elements() * static_cast<std::int64_t>(sizeof(double));
}

void preference_loss(CpuContext& context, const PreferenceLoss& a) {
  const auto optional = [&](const Tensor& tensor) {
    return tensor.absent() ? nullptr : context.data<const double>(tensor);
  };
  const PreferenceDocuments of{.terms = a.terms,
                               .microbatches = a.microbatches,
                               .roles = context.data<const std::int32_t>(a.roles),
                               .lengths = context.data<const float>(a.lengths),
                               .sums = context.data<const double>(a.sums),
                               .reference = optional(a.reference),
                               .likelihoods = optional(a.likelihoods),
                               .totals = context.data<const double>(a.totals),
                               .confidences = optional(a.confidences),
                               .sorted = context.data<double>(a.workspace),
                               .documents = a.roles.elements()};
  double divergence = 0, mismatched = 0;
  for (std::int64_t d = 0; d < of.documents; ++d) {
    if (of.roles[d] != PreferenceLoss::kMismatched) continue;
    divergence += of.ratio(d);
    ++mismatched;
  }
  divergence = std::max(divergence / std::max(mismatched, 1.0), 0.0);
  PreferenceDocuments::Metrics metrics;
  auto* slopes = context.data<float>(a.slopes);
  for (std::int64_t d = 0; d < of.documents; ++d) of.sort(d);
  for (std::int64_t d = 0; d < of.documents; ++d) of.document(d, divergence, slopes, metrics);
  if (!a.adds_metrics) return;
  metrics.add(PreferenceMetric::kDivergence, divergence / a.microbatches);
  auto* sums = context.data<float>(a.metrics);
  for (int m = 0; m < kPreferenceMetrics; ++m) {
    if (a.places[m] >= 0) sums[a.places[m]] += static_cast<float>(metrics.of[m]);
  }
}

void document_weights(CpuContext& context, const DocumentWeights& a) {
  const float *slopes = context.data<const float>(a.slopes), *factors = context.data<const float>(a.factors);
  const float* likelihood =
      a.likelihood_factors.absent() ? nullptr : context.data<const float>(a.likelihood_factors);
  const float* losses = a.losses.absent() ? nullptr : context.data<const float>(a.losses);
  const auto* starts = context.data<const std::int32_t>(a.starts);
  auto* weights = context.data<float>(a.weights);
  const std::int64_t documents = a.slopes.rows();
  const std::int64_t mean = a.weights.elements() / std::max<std::int64_t>(documents, 1) + 1;
  parallel_ranges(context, documents, 3 * mean * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) {
      const float answer = -slopes[2 * d], all = -slopes[2 * d + 1];
      for (std::int64_t t = starts[d]; t < starts[d + 1]; ++t) {
        weights[t] = answer * factors[t] + (likelihood ? all * likelihood[t] : 0.0F);
        if (losses && weights[t] != 0) weights[t] *= std::exp(-losses[t]);
      }
    }
  });
}

}  // namespace

void register_preference_loss(KernelTable& table) {
  table.add<DocumentSums, CpuContext, &document_sums>();
  table.add<PreferenceLoss, CpuContext, &preference_loss, &loss_workspace>();
  table.add<DocumentWeights, CpuContext, &document_weights>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
