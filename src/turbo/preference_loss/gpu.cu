#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/preference_loss/formula.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A block computes the sum of one document.
struct Sums {
  static constexpr int kThreads = 256;
  const float *losses, *factors;
  const std::int32_t* starts;
  double* sums;
  const float* collisions;  // may be null

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t d = block();
    double sum = 0;
    for (std::int64_t t = starts[d] + thread(); t < starts[d + 1]; t += kThreads) {
      if (factors[t] != 0) {
        const double loss =
            static_cast<double>(losses[t]) + (collisions ? ::log(static_cast<double>(collisions[t])) : 0.0);
        sum += static_cast<double>(factors[t]) * loss;
      }
    }
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) sums[d] = -sum;
  }
};

// Runs in one block: a microbatch has few documents, and their metrics are sums over all of them.
struct Loss {
  static constexpr int kThreads = 256;
  PreferenceDocuments of;
  std::int8_t places[kPreferenceMetrics];
  bool adds_metrics;
  float *slopes, *metrics;

  PRIMUS_DEVICE void operator()() const {
    double divergence = 0, mismatched = 0;
    for (std::int64_t d = thread(); d < of.documents; d += kThreads) {
      of.sort(d);
      if (of.roles[d] != PreferenceLoss::kMismatched) continue;
      divergence += of.ratio(d);
      mismatched += 1;
    }
    divergence = block_reduce<kThreads>(divergence);
    mismatched = block_reduce<kThreads>(mismatched);
    divergence = ::fmax(divergence / ::fmax(mismatched, 1.0), 0.0);
    barrier();  // the sorted quantities of all threads are read below
    PreferenceDocuments::Metrics mine;
    for (std::int64_t d = thread(); d < of.documents; d += kThreads) of.document(d, divergence, slopes, mine);
    if (!adds_metrics) return;
    if (thread() == 0) mine.add(PreferenceMetric::kDivergence, divergence / of.microbatches);
    for (int m = 0; m < kPreferenceMetrics; ++m) {
      const double sum = block_reduce<kThreads>(mine.of[m]);
      if (thread() == 0 && places[m] >= 0) metrics[places[m]] += static_cast<float>(sum);
    }
  }
};

// A block writes the weights of one document.
struct Weights {
  static constexpr int kThreads = 256;
  const float *slopes, *factors, *likelihood, *losses;
  const std::int32_t* starts;
  float* weights;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t d = block();
    const float answer = -slopes[2 * d], all = -slopes[2 * d + 1];
    for (std::int64_t t = starts[d] + thread(); t < starts[d + 1]; t += kThreads) {
      weights[t] = answer * factors[t] + (likelihood ? all * likelihood[t] : 0.0F);
      if (losses && weights[t] != 0) weights[t] *= ::expf(-losses[t]);
    }
  }
};

template <class T>
const T* optional(Context& context, const Tensor& tensor) {
  return tensor.absent() ? nullptr : context.data<T>(tensor);
}

void document_sums(Context& context, const DocumentSums& a) {
  launch(context, a.sums.elements(),
         Sums{context.data<float>(a.losses), context.data<float>(a.factors),
              context.data<std::int32_t>(a.starts), context.data<double>(a.sums),
              optional<float>(context, a.collisions)});
}

std::int64_t loss_workspace(Context&, const PreferenceLoss& a) {
  return 4 * a.roles.elements() * static_cast<std::int64_t>(sizeof(double));
}

void preference_loss(Context& context, const PreferenceLoss& a) {
  Loss loss{.of = {.terms = a.terms,
                   .microbatches = a.microbatches,
                   .roles = context.data<std::int32_t>(a.roles),
                   .lengths = context.data<float>(a.lengths),
                   .sums = context.data<double>(a.sums),
                   .reference = optional<double>(context, a.reference),
                   .likelihoods = optional<double>(context, a.likelihoods),
                   .totals = context.data<double>(a.totals),
                   .confidences = optional<double>(context, a.confidences),
                   .sorted = context.data<double>(a.workspace),
                   .documents = a.roles.elements()},
            .places = {},
            .adds_metrics = a.adds_metrics,
            .slopes = context.data<float>(a.slopes),
            .metrics = context.data<float>(a.metrics)};
  std::copy(a.places, a.places + kPreferenceMetrics, loss.places);
  launch(context, 1, loss);
}

void document_weights(Context& context, const DocumentWeights& a) {
  launch(context, a.slopes.rows(),
         Weights{context.data<float>(a.slopes), context.data<float>(a.factors),
                 optional<float>(context, a.likelihood_factors), optional<float>(context, a.losses),
                 context.data<std::int32_t>(a.starts), context.data<float>(a.weights)});
}

}  // namespace

void register_preference_loss(KernelTable& table) {
  table.add<DocumentSums, Context, &document_sums>();
  table.add<PreferenceLoss, Context, &preference_loss, &loss_workspace>();
  table.add<DocumentWeights, Context, &document_weights>();
}

}  // namespace primus::turbo::PRIMUS_GPU
