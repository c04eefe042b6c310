// Softmax cross-entropy on the CPU, one row at a time. A row (200 KB for a vocabulary of 50 thousand) is read
// from memory once: a first walk finds maximum and sum together, block by block, so that each block is still
// in L1 when its exponentials are summed; the gradient's walk then finds the row in L2.
#include <algorithm>
#include <cmath>
#include <limits>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/cross_entropy/cross_entropy.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The maximum, NaN left aside: the sum of exponentials is what carries a NaN into the loss.
float max_of(const float* x, std::int64_t n) {
  constexpr int kLanes = 64;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = x[i] > lanes[lane] ? x[i] : lanes[lane];
  float result = lanes[0];
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}

struct Normaliser {
  float max;
  double sum;  // of exp(x - max)
};

Normaliser normaliser(const float* x, std::int64_t n) {
  constexpr std::int64_t kBlock = 2048;
  Normaliser result{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = x + begin;
    const std::int64_t length = std::min(kBlock, n - begin);
    const float block_max = max_of(block, length);
    if (block_max > result.max) {
      result.sum *= std::exp(static_cast<double>(result.max) - static_cast<double>(block_max));
      result.max = block_max;
    }
    // Nothing but -inf so far: those terms are exp(-inf - 0) = 0, while -inf - -inf would be NaN.
    const float max = result.max == -std::numeric_limits<float>::infinity() ? 0.0F : result.max;
    result.sum += sum_terms(length, [=](std::int64_t i) { return PRIMUS_CPU_ISA::exp(block[i] - max); });
  }
  return result;
}

template <class T>
void cross_entropy_row(const float* logits, std::int32_t label, float weight, std::int64_t vocab, float* loss,
                       T* d_logits) {
  if (weight == 0) {  // a masked token: whatever its logits are, zero times NaN included
    *loss = 0;
    if (d_logits) std::fill_n(d_logits, vocab, from_float<T>(0.0F));
    return;
  }
  assert(label >= 0 && label < vocab);
  const Normaliser norm = normaliser(logits, vocab);
  const double label_logit = static_cast<double>(logits[label]) - static_cast<double>(norm.max);
  *loss = static_cast<float>(static_cast<double>(weight) * (std::log(norm.sum) - label_logit));
  if (!d_logits) return;
  const float max = norm.max;
  const float scale = static_cast<float>(static_cast<double>(weight) / norm.sum);
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < vocab; ++i) {
    d_logits[i] = from_float<T>(scale * PRIMUS_CPU_ISA::exp(logits[i] - max));
  }
  const double label_probability = std::exp(label_logit) / norm.sum;
  d_logits[label] = from_float<T>(static_cast<float>(static_cast<double>(weight) * (label_probability - 1)));
}

void cross_entropy(CpuContext& context, const CrossEntropy& call) {
  const auto* logits = context.data<const float>(call.logits);
  const auto* labels = context.data<const std::int32_t>(call.labels);
  const auto* weights = context.data<const float>(call.weights);
  auto* loss = context.data<float>(call.loss);
  const std::int64_t tokens = call.logits.shape[0], vocab = call.logits.shape[1];
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto type) {
    using T = decltype(type);
    T* d_logits = call.d_logits.absent() ? nullptr : context.data<T>(call.d_logits);
    parallel_ranges(context, tokens, vocab * 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        cross_entropy_row(logits + t * vocab, labels[t], weights[t], vocab, loss + t,
                          d_logits ? d_logits + t * vocab : nullptr);
      }
    });
  });
}

}  // namespace

void register_cross_entropy(KernelTable& table) { table.add<CrossEntropy, CpuContext, &cross_entropy>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
