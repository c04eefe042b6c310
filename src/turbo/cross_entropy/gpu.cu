// A block works on one row: maximum, sum of exponentials, gradient.
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// kCount: logits that a thread takes at once.
template <class T, int kCount>
struct Loss {
  static constexpr int kThreads = 512;
  const float* logits;
  const std::int32_t* labels;
  const float* weights;
  float* loss;
  T* d_logits;  // or null; may be logits
  std::int64_t vocab;
  Fault* fault;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    const float* x = logits + token * vocab;
    T* d = d_logits ? d_logits + token * vocab : nullptr;
    const float weight = weights[token];
    if (weight == 0) {  // a masked token: whatever its logits are, zero times NaN included
      if (thread() == 0) loss[token] = 0;
      if (d) {
        for (std::int64_t i = thread(); i < vocab; i += kThreads) d[i] = from_float<T>(0.0F);
      }
      return;
    }
    // NaN left aside: the sum of exponentials is what carries a NaN into the loss.
    float largest = -infinity();
    for (std::int64_t i = thread() * kCount; i < vocab; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) largest = ::fmaxf(largest, v[k]);
    }
    largest = block_reduce<kThreads>(largest, Maximum{});
    // Nothing but -inf: those terms are exp(-inf - 0) = 0, while -inf - -inf would be NaN.
    const float from = largest == -infinity() ? 0.0F : largest;
    float part = 0;
    for (std::int64_t i = thread() * kCount; i < vocab; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) part += ::expf(v[k] - from);
    }
    const double sum = block_reduce<kThreads>(static_cast<double>(part));
    const std::int32_t label = labels[token];
    const bool valid = label >= 0 && label < vocab;
    if (!valid && thread() == 0) report_fault(fault, Fault::Kind::kLabelOutsideVocabulary, label, vocab);
    const double label_logit =
        static_cast<double>(valid ? x[label] : infinity()) - static_cast<double>(largest);
    if (thread() == 0)
      loss[token] = static_cast<float>(static_cast<double>(weight) * (::log(sum) - label_logit));
    if (!d) return;
    barrier();  // d may be x, and every thread reads the label's logit
    const auto scale = static_cast<float>(static_cast<double>(weight) / sum);
    const auto of_label = static_cast<float>(static_cast<double>(weight) * (::exp(label_logit) / sum - 1));
    for (std::int64_t i = thread() * kCount; i < vocab; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) v[k] = i + k == label ? of_label : scale * ::expf(v[k] - largest);
      store<kCount>(d + i, v);
    }
  }
};

void cross_entropy(Context& context, const CrossEntropy& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t vocab = call.logits.shape[1];
    const auto* logits = context.data<float>(call.logits);
    T* d_logits = optional<T>(context, call.d_logits);
    with_vector<float>(rows_of_vectors<float>(vocab, logits, d_logits), [&](auto count) {
      launch(
          context, call.logits.shape[0],
          Loss<T, count>{logits, context.data<std::int32_t>(call.labels), context.data<float>(call.weights),
                         context.data<float>(call.loss), d_logits, vocab, faults(context)});
    });
  });
}

}  // namespace

void register_cross_entropy(KernelTable& table) { table.add<CrossEntropy, Context, &cross_entropy>(); }

}  // namespace primus::turbo::PRIMUS_GPU
