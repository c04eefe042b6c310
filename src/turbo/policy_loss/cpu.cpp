#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/policy_loss/formula.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

PolicyDocuments documents_of(CpuContext& context, const PolicyTerms& terms, const PolicyTokens& tokens,
                             const Tensor& starts) {
  const auto optional = [&](const Tensor& tensor) {
    return tensor.absent() ? nullptr : context.data<const float>(tensor);
  };
  PolicyDocuments of{};
  of.terms = terms;
  of.losses = context.data<const float>(tokens.losses);
  of.mask = context.data<const float>(tokens.mask);
  of.old = optional(tokens.old);
  of.sampled = optional(tokens.sampled);
  of.reference = optional(tokens.reference);
  of.entropies = optional(tokens.entropies);
  of.chosen = optional(tokens.chosen);
  of.targets = optional(tokens.returns.absent() ? tokens.advantages : tokens.returns);
  of.starts = context.data<const std::int32_t>(starts);
  return of;
}

// Calls work(d) for every document, on the pool.
template <class Work>
void for_documents(CpuContext& context, std::int64_t documents, std::int64_t tokens, Work work) {
  const std::int64_t mean = tokens / std::max<std::int64_t>(documents, 1) + 1;
  parallel_ranges(context, documents, 8 * mean * sizeof(double), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) work(d);
  });
}

void policy_sums(CpuContext& context, const PolicySums& a) {
  const PolicyDocuments of = documents_of(context, a.terms, a.tokens, a.starts);
  auto* sums = context.data<double>(a.sums);
  for_documents(context, a.sums.rows(), a.tokens.losses.elements(), [&](std::int64_t d) {
    PolicyDocumentSums document;
    for (std::int64_t t = of.starts[d]; t < of.starts[d + 1]; ++t) of.sum_token(t, document);
    std::copy(document.of, document.of + kPolicySums, sums + d * kPolicySums);
  });
}

std::int64_t loss_workspace(CpuContext&, const PolicyLoss& a) {
  return a.roles.elements() * static_cast<std::int64_t>(sizeof(PolicyMetricSums));
}

void policy_loss(CpuContext& context, const PolicyLoss& a) {
  PolicyDocuments of = documents_of(context, a.terms, a.tokens, a.starts);
  of.microbatches = a.microbatches;
  of.microbatch_tokens = a.microbatch_tokens;
  of.entropy_coef = a.entropy_coef;
  of.adds_answers = a.adds_answers;
  of.roles = context.data<const std::int32_t>(a.roles);
  of.advantages = a.advantages.absent() ? nullptr : context.data<const float>(a.advantages);
  of.sums = a.sums.absent() ? nullptr : context.data<const double>(a.sums);
  of.totals = context.data<const double>(a.totals);
  of.weights = context.data<float>(a.weights);
  of.entropy_weights = a.entropy_weights.absent() ? nullptr : context.data<float>(a.entropy_weights);
  auto* parts = context.data<PolicyMetricSums>(a.workspace);
  const std::int64_t documents = a.roles.elements();
  for_documents(context, documents, a.weights.elements(), [&](std::int64_t d) {
    PolicyMetricSums part;
    if (of.roles[d] == PolicyLoss::kAnswer) {
      const PolicyAnswer answer = of.answer(d);
      of.answer_metrics(answer, part);
      for (std::int64_t t = of.starts[d]; t < of.starts[d + 1]; ++t) of.token(t, answer, part);
    } else {
      std::fill(of.weights + of.starts[d], of.weights + of.starts[d + 1], 0.0F);
    }
    parts[d] = part;
  });
  auto* metrics = context.data<float>(a.metrics);
  for (int m = 0; m < kPolicyMetrics; ++m) {
    double sum = 0;
    for (std::int64_t d = 0; d < documents; ++d) sum += parts[d].of[m];
    if (a.places[m] >= 0) metrics[a.places[m]] += static_cast<float>(sum);
  }
}

}  // namespace

void register_policy_loss(KernelTable& table) {
  table.add<PolicySums, CpuContext, &policy_sums>();
  table.add<PolicyLoss, CpuContext, &policy_loss, &loss_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
