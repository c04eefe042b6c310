// Softmax cross-entropy on the CPU, one row at a time. A row (200 KB for a vocabulary of 50 thousand) is read
// from memory only once. The first pass computes maximum and sum together, block by block, so that each block
// is still in L1 when its exponentials are summed. The gradient pass then reads the row from L2.
#include <algorithm>
#include <cmath>
#include <limits>

#include "turbo/cpu/largest.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/cross_entropy/formula.h"
#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

template <class Cap>
SoftmaxStatistics normaliser(const float* x, std::int64_t n, Cap capped) {
  constexpr std::int64_t kBlock = 2048;
  SoftmaxStatistics result{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = x + begin;
    const std::int64_t length = std::min(kBlock, n - begin);
    const float block_max = capped(max_of(block, length));
    if (block_max > result.largest) {
      result.sum *= std::exp(static_cast<double>(result.largest) - static_cast<double>(block_max));
      result.largest = block_max;
    }
    const float base = exponent_base(result.largest);
    result.sum +=
        sum_terms(length, [=](std::int64_t i) { return PRIMUS_CPU_ISA::exp(capped(block[i]) - base); });
  }
  return result;
}

// Computes the further sums of a row whose largest logit is `largest`.
template <class Cap>
SoftmaxMoments moments_of(const float* x, std::int64_t n, float largest, Cap capped) {
  constexpr std::int64_t kBlock = 2048;
  const float base = exponent_base(largest);
  SoftmaxMoments moments;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = x + begin;
    const std::int64_t length = std::min(kBlock, n - begin);
    moments.first += sum_terms(length, [=](std::int64_t i) {
      const float relative = bounded_relative(capped(block[i]) - base);
      return PRIMUS_CPU_ISA::exp(relative) * relative;
    });
    moments.squares += sum_terms(length, [=](std::int64_t i) {
      const float e = PRIMUS_CPU_ISA::exp(capped(block[i]) - base);
      return e * e;
    });
  }
  return moments;
}

// Computes the loss and the gradient of some columns of a row, from the maximum and the sum over all columns.
// `label` is the column of the label, or a number outside [0, columns) if another rank has this column.
// `logit_of_label` is already capped. `slope` adds the gradient of the entropy's part of the loss.
template <class T, class Cap, class Slope = NoEntropySlope>
void from_normaliser(const float* logits, const SoftmaxStatistics& norm, float logit_of_label,
                     std::int64_t label, float weight, std::int64_t columns, float* loss, T* d_logits,
                     Cap capped, Slope slope = {}) {
  const double label_logit = norm.relative(logit_of_label);
  *loss = norm.loss(weight, label_logit);
  if (!d_logits) return;
  const float largest = norm.largest, scale = norm.gradient_scale(weight);
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < columns; ++i) {
    const float y = capped(logits[i]);
    const float e = PRIMUS_CPU_ISA::exp(y - largest);
    d_logits[i] = from_float<T>(slope.add_to(scale * e, e, y - largest) * capped.slope(y));
  }
  if (label < 0 || label >= columns) return;
  const float relative = logit_of_label - largest;
  d_logits[label] =
      from_float<T>(slope.add_to(norm.label_gradient(weight, label_logit), ::expf(relative), relative) *
                    capped.slope(logit_of_label));
}

// Writes zeros for a masked token, even if its logits are NaN.
template <class T>
void masked_row(std::int64_t columns, float* loss, T* d_logits) {
  *loss = 0;
  if (d_logits) std::fill_n(d_logits, columns, from_float<T>(0.0F));
}

// Calls body(token, row of logits, row of d_logits or null) for every token.
template <class Call, class Body>
void for_each_row(CpuContext& context, const Call& call, const Body& body) {
  const auto* logits = context.data<const float>(call.logits);
  const std::int64_t tokens = call.logits.shape[0], columns = call.logits.shape[1];
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto type) {
    using T = decltype(type);
    T* d_logits = call.d_logits.absent() ? nullptr : context.data<T>(call.d_logits);
    parallel_ranges(context, tokens, columns * 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        body(t, logits + t * columns, d_logits ? d_logits + t * columns : nullptr);
    });
  });
}

void cross_entropy(CpuContext& context, const CrossEntropy& call) {
  const auto* labels = context.data<const std::int32_t>(call.labels);
  const auto* weights = context.data<const float>(call.weights);
  auto* loss = context.data<float>(call.loss);
  const std::int64_t vocab = call.logits.shape[1];
  with_cap(call.cap, [&](auto capped) {
    for_each_row(context, call, [=](std::int64_t t, const float* logits, auto* d_logits) {
      if (weights[t] == 0) return masked_row(vocab, loss + t, d_logits);
      const std::int32_t label = labels[t];
      assert(label >= 0 && label < vocab);
      // Passes the label's logit by value, because the gradient may overwrite it in memory.
      from_normaliser(logits, normaliser(logits, vocab, capped), capped(logits[label]), label, weights[t],
                      vocab, loss + t, d_logits, capped);
    });
  });
}

void part(CpuContext& context, const CrossEntropyPart& call) {
  const auto* logits = context.data<const float>(call.logits);
  const auto* labels = context.data<const std::int32_t>(call.labels);
  auto* part = context.data<float>(call.part);
  const std::int64_t columns = call.logits.shape[1], values = call.part.shape[1];
  with_cap(call.cap, [&](auto capped) {
    parallel_ranges(context, call.logits.shape[0], columns * 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const float* row = logits + t * columns;
        const SoftmaxStatistics norm = normaliser(row, columns, capped);
        const std::int64_t label = labels[t] - call.first;
        float* out = part + t * values;
        out[0] = norm.largest;
        out[1] = static_cast<float>(norm.sum);
        out[2] = label >= 0 && label < columns ? capped(row[label]) : -std::numeric_limits<float>::infinity();
        if (values != kEntropyValues) continue;
        const SoftmaxMoments moments = moments_of(row, columns, norm.largest, capped);
        out[3] = static_cast<float>(moments.first);
        out[4] = static_cast<float>(moments.squares);
      }
    });
  });
}

// Merges the partial results of token t.
struct MergedParts {
  MergedParts(const float* parts, std::int64_t count, std::int64_t tokens, std::int64_t values,
              std::int64_t t) {
    const auto value = [&](std::int64_t p, std::int64_t i) { return parts[(p * tokens + t) * values + i]; };
    for (std::int64_t p = 0; p < count; ++p) {
      norm.largest = std::max(norm.largest, value(p, 0));
      // max ignores NaN, but NaN is still part of the sum.
      label_logit = std::max(label_logit, value(p, 2));
    }
    for (std::int64_t p = 0; p < count; ++p) {
      norm.sum += norm.of_part(value(p, 0), value(p, 1));
      if (values != kEntropyValues) continue;
      moments.add_part(norm.largest, {value(p, 0), static_cast<double>(value(p, 1))},
                       static_cast<double>(value(p, 3)), static_cast<double>(value(p, 4)));
    }
  }
  SoftmaxStatistics norm{-std::numeric_limits<float>::infinity(), 0};
  SoftmaxMoments moments;
  float label_logit = -std::numeric_limits<float>::infinity();
};

void of_parts(CpuContext& context, const CrossEntropyOfParts& call) {
  const auto* labels = context.data<const std::int32_t>(call.labels);
  const auto* weights = context.data<const float>(call.weights);
  const auto* parts = context.data<const float>(call.parts);
  auto* loss = context.data<float>(call.loss);
  const auto optional = [&](const Tensor& tensor) {
    return tensor.absent() ? nullptr : context.data<float>(tensor);
  };
  const float* entropy_weights = optional(call.entropy_weights);
  float *entropies = optional(call.entropies), *collisions = optional(call.collisions);
  const std::int64_t tokens = call.logits.shape[0], columns = call.logits.shape[1];
  const std::int64_t count = call.parts.shape[0], values = call.parts.shape[2], first = call.first;
  [[maybe_unused]] const std::int64_t vocabulary = call.vocabulary;
  with_cap(call.cap, [&](auto capped) {
    for_each_row(context, call, [=](std::int64_t t, const float* logits, auto* d_logits) {
      const float weight = weights[t], entropy_weight = entropy_weights ? entropy_weights[t] : 0;
      if (weight == 0 && entropy_weight == 0) {
        if (entropies) entropies[t] = 0;
        if (collisions) collisions[t] = 0;
        return masked_row(columns, loss + t, d_logits);
      }
      const MergedParts row(parts, count, tokens, values, t);
      const double entropy = row.moments.entropy(row.norm);
      if (entropies) entropies[t] = static_cast<float>(entropy);
      if (collisions) collisions[t] = static_cast<float>(row.moments.collision(row.norm));
      // The label of a token without a weight may be invalid.
      const bool labelled = weight != 0;
      assert(!labelled || (labels[t] >= 0 && labels[t] < vocabulary));
      const float label_logit = labelled ? row.label_logit : row.norm.largest;
      const std::int64_t label = labelled ? labels[t] - first : -1;
      if (entropy_weight == 0) {
        return from_normaliser(logits, row.norm, label_logit, label, weight, columns, loss + t, d_logits,
                               capped);
      }
      from_normaliser(logits, row.norm, label_logit, label, weight, columns, loss + t, d_logits, capped,
                      EntropySlope(entropy_weight, row.norm, row.moments));
      loss[t] += static_cast<float>(static_cast<double>(entropy_weight) * entropy);
    });
  });
}

}  // namespace

void register_cross_entropy(KernelTable& table) {
  table.add<CrossEntropy, CpuContext, &cross_entropy>();
  table.add<CrossEntropyPart, CpuContext, &part>();
  table.add<CrossEntropyOfParts, CpuContext, &of_parts>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
