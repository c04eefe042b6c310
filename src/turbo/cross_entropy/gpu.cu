// A block works on one row: maximum, sum of exponentials, gradient.
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Columns of one row. Every thread of the block calls these and gets the result; kCount logits are taken at
// once.
template <int kThreads, int kCount>
struct Row {
  const float* x;
  std::int64_t columns;

  // NaN left aside: the sum of exponentials is what carries a NaN into the loss.
  PRIMUS_DEVICE float largest() const {
    float found = -infinity();
    for (std::int64_t i = thread() * kCount; i < columns; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) found = ::fmaxf(found, v[k]);
    }
    return block_reduce<kThreads>(found, Maximum{});
  }

  PRIMUS_DEVICE double sum_of_exponentials(float largest) const {
    // Nothing but -inf: those terms are exp(-inf - 0) = 0, while -inf - -inf would be NaN.
    const float from = largest == -infinity() ? 0.0F : largest;
    float part = 0;
    for (std::int64_t i = thread() * kCount; i < columns; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) part += ::expf(v[k] - from);
    }
    return block_reduce<kThreads>(static_cast<double>(part));
  }

  // Of the loss `weight` · (log(sum) - label_logit); `label_logit` is the label's less the largest, `label`
  // its column or one outside the row. d may be x.
  template <class T>
  PRIMUS_DEVICE void gradient(T* d, float weight, float largest, double sum, std::int64_t label,
                              double label_logit) const {
    const auto scale = static_cast<float>(static_cast<double>(weight) / sum);
    const auto of_label = static_cast<float>(static_cast<double>(weight) * (::exp(label_logit) / sum - 1));
    for (std::int64_t i = thread() * kCount; i < columns; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) v[k] = i + k == label ? of_label : scale * ::expf(v[k] - largest);
      store<kCount>(d + i, v);
    }
  }

  // A masked token: whatever its logits are, zero times NaN included.
  template <class T>
  PRIMUS_DEVICE void mask(T* d, float* loss) const {
    if (thread() == 0) *loss = 0;
    if (!d) return;
    for (std::int64_t i = thread(); i < columns; i += kThreads) d[i] = from_float<T>(0.0F);
  }
};

PRIMUS_DEVICE bool is_label(std::int32_t label, std::int64_t vocab, Fault* fault) {
  const bool valid = label >= 0 && label < vocab;
  if (!valid && thread() == 0) report_fault(fault, Fault::Kind::kLabelOutsideVocabulary, label, vocab);
  return valid;
}

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
    const Row<kThreads, kCount> row{logits + token * vocab, vocab};
    T* d = d_logits ? d_logits + token * vocab : nullptr;
    const float weight = weights[token];
    if (weight == 0) return row.mask(d, loss + token);
    const float largest = row.largest();
    const double sum = row.sum_of_exponentials(largest);
    const std::int32_t label = labels[token];
    const float logit = is_label(label, vocab, fault) ? row.x[label] : infinity();
    const double label_logit = static_cast<double>(logit) - static_cast<double>(largest);
    if (thread() == 0)
      loss[token] = static_cast<float>(static_cast<double>(weight) * (::log(sum) - label_logit));
    if (!d) return;
    barrier();  // d may be x, and every thread reads the label's logit
    row.gradient(d, weight, largest, sum, label, label_logit);
  }
};

template <int kCount>
struct Part {
  static constexpr int kThreads = 512;
  const float* logits;
  const std::int32_t* labels;
  float* part;
  std::int64_t columns, first;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    const Row<kThreads, kCount> row{logits + token * columns, columns};
    const float largest = row.largest();
    const double sum = row.sum_of_exponentials(largest);
    if (thread() != 0) return;
    const std::int64_t label = labels[token] - first;
    float* const out = part + token * kCrossEntropyValues;
    out[0] = largest;
    out[1] = static_cast<float>(sum);
    out[2] = label >= 0 && label < columns ? row.x[label] : -infinity();
  }
};

template <class T, int kCount>
struct LossOfParts {
  static constexpr int kThreads = 512;
  const float* parts;
  const float* logits;
  const std::int32_t* labels;
  const float* weights;
  float* loss;
  T* d_logits;  // or null; may be logits
  std::int64_t count, tokens, columns, first, vocab;
  Fault* fault;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    const Row<kThreads, kCount> row{logits + token * columns, columns};
    T* d = d_logits ? d_logits + token * columns : nullptr;
    const float weight = weights[token];
    if (weight == 0) return row.mask(d, loss + token);
    // Every thread for itself: parts are few.
    float largest = -infinity(), logit = -infinity();
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + (p * tokens + token) * kCrossEntropyValues;
      largest = ::fmaxf(largest, part[0]);
      logit = ::fmaxf(logit, part[2]);  // a NaN is in the sum, too
    }
    double sum = 0;
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + (p * tokens + token) * kCrossEntropyValues;
      // A part of nothing but -inf has the sum 0.
      const double scale =
          part[0] == -infinity() ? 1.0 : ::exp(static_cast<double>(part[0]) - static_cast<double>(largest));
      sum += static_cast<double>(part[1]) * scale;
    }
    const std::int32_t label = labels[token];
    if (!is_label(label, vocab, fault)) logit = infinity();
    const double label_logit = static_cast<double>(logit) - static_cast<double>(largest);
    if (thread() == 0)
      loss[token] = static_cast<float>(static_cast<double>(weight) * (::log(sum) - label_logit));
    if (d) row.gradient(d, weight, largest, sum, label - first, label_logit);
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

void cross_entropy_part(Context& context, const CrossEntropyPart& call) {
  const std::int64_t columns = call.logits.shape[1];
  const auto* logits = context.data<float>(call.logits);
  with_vector<float>(rows_of_vectors<float>(columns, logits), [&](auto count) {
    launch(context, call.logits.shape[0],
           Part<count>{logits, context.data<std::int32_t>(call.labels), context.data<float>(call.part),
                       columns, call.first});
  });
}

void cross_entropy_of_parts(Context& context, const CrossEntropyOfParts& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t tokens = call.logits.shape[0], columns = call.logits.shape[1];
    const auto* logits = context.data<float>(call.logits);
    T* d_logits = optional<T>(context, call.d_logits);
    with_vector<float>(rows_of_vectors<float>(columns, logits, d_logits), [&](auto count) {
      launch(context, tokens,
             LossOfParts<T, count>{context.data<float>(call.parts), logits,
                                   context.data<std::int32_t>(call.labels), context.data<float>(call.weights),
                                   context.data<float>(call.loss), d_logits, call.parts.shape[0], tokens,
                                   columns, call.first, call.vocabulary, faults(context)});
    });
  });
}

}  // namespace

void register_cross_entropy(KernelTable& table) {
  table.add<CrossEntropy, Context, &cross_entropy>();
  table.add<CrossEntropyPart, Context, &cross_entropy_part>();
  table.add<CrossEntropyOfParts, Context, &cross_entropy_of_parts>();
}

}  // namespace primus::turbo::PRIMUS_GPU
