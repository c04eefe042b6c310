#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/policy_loss/formula.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A block sums the tokens of one document.
struct Sums {
  static constexpr int kThreads = 256;
  PolicyDocuments of;
  double* sums;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t d = block();
    PolicyDocumentSums mine;
    for (std::int64_t t = of.starts[d] + thread(); t < of.starts[d + 1]; t += kThreads) of.sum_token(t, mine);
    for (int i = 0; i < kPolicySums; ++i) {
      const double sum = block_reduce<kThreads>(mine.of[i]);
      if (thread() == 0) sums[d * kPolicySums + i] = sum;
    }
  }
};

// A block writes the weights of one document, and the document's part of the metrics.
struct Loss {
  static constexpr int kThreads = 256;
  PolicyDocuments of;
  double* parts;  // [documents, kPolicyMetrics]

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t d = block(), begin = of.starts[d] + thread(), end = of.starts[d + 1];
    PolicyMetricSums mine;
    if (of.roles[d] == PolicyLoss::kAnswer) {
      const PolicyAnswer answer = of.answer(d);
      if (thread() == 0) of.answer_metrics(answer, mine);
      for (std::int64_t t = begin; t < end; t += kThreads) of.token(t, answer, mine);
    } else {
      for (std::int64_t t = begin; t < end; t += kThreads) of.weights[t] = 0;
    }
    for (int m = 0; m < kPolicyMetrics; ++m) {
      const double sum = block_reduce<kThreads>(mine.of[m]);
      if (thread() == 0) parts[d * kPolicyMetrics + m] = sum;
    }
  }
};

// A block adds one metric of all documents.
struct Metrics {
  static constexpr int kThreads = 256;
  const double* parts;
  std::int64_t documents;
  std::int8_t places[kPolicyMetrics];
  float* metrics;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t m = block();
    double sum = 0;
    for (std::int64_t d = thread(); d < documents; d += kThreads) sum += parts[d * kPolicyMetrics + m];
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0 && places[m] >= 0) metrics[places[m]] += static_cast<float>(sum);
  }
};

PolicyDocuments documents_of(Context& context, const PolicyTerms& terms, const PolicyTokens& tokens,
                             const Tensor& starts) {
  const auto optional = [&](const Tensor& tensor) -> const float* {
    return tensor.absent() ? nullptr : context.data<float>(tensor);
  };
  PolicyDocuments of{};
  of.terms = terms;
  of.losses = context.data<float>(tokens.losses);
  of.mask = context.data<float>(tokens.mask);
  of.old = optional(tokens.old);
  of.sampled = optional(tokens.sampled);
  of.reference = optional(tokens.reference);
  of.entropies = optional(tokens.entropies);
  of.chosen = optional(tokens.chosen);
  of.targets = optional(tokens.returns.absent() ? tokens.advantages : tokens.returns);
  of.starts = context.data<std::int32_t>(starts);
  return of;
}

void policy_sums(Context& context, const PolicySums& a) {
  launch(context, a.sums.rows(),
         Sums{documents_of(context, a.terms, a.tokens, a.starts), context.data<double>(a.sums)});
}

std::int64_t loss_workspace(Context&, const PolicyLoss& a) {
  return kPolicyMetrics * a.roles.elements() * static_cast<std::int64_t>(sizeof(double));
}

void policy_loss(Context& context, const PolicyLoss& a) {
  PolicyDocuments of = documents_of(context, a.terms, a.tokens, a.starts);
  of.microbatches = a.microbatches;
  of.microbatch_tokens = a.microbatch_tokens;
  of.entropy_coef = a.entropy_coef;
  of.adds_answers = a.adds_answers;
  of.roles = context.data<std::int32_t>(a.roles);
  of.advantages = a.advantages.absent() ? nullptr : context.data<float>(a.advantages);
  of.sums = a.sums.absent() ? nullptr : context.data<double>(a.sums);
  of.totals = context.data<double>(a.totals);
  of.weights = context.data<float>(a.weights);
  of.entropy_weights = a.entropy_weights.absent() ? nullptr : context.data<float>(a.entropy_weights);
  auto* parts = context.data<double>(a.workspace);
  launch(context, a.roles.elements(), Loss{of, parts});
  Metrics metrics{.parts = parts,
                  .documents = a.roles.elements(),
                  .places = {},
                  .metrics = context.data<float>(a.metrics)};
  std::copy(a.places, a.places + kPolicyMetrics, metrics.places);
  launch(context, kPolicyMetrics, metrics);
}

}  // namespace

void register_policy_loss(KernelTable& table) {
  table.add<PolicySums, Context, &policy_sums>();
  table.add<PolicyLoss, Context, &policy_loss, &loss_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
