// A block processes one row: it computes the maximum, the sum of exponentials, and the gradient. If a row is
// too long for one multiprocessor's memory and the GPU has pairs of blocks, each block of a pair processes
// half a row.
#include "device/gpu/pairs.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/cross_entropy/formula.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Processes columns of one row. Every thread of the block must call these functions, and every thread gets
// the result. A thread processes kCount logits at once. With kFast, exponentials are computed by fast_exp().
// Between statistics() and gradient(), the block keeps the first columns: kHeld loads per thread in
// registers, and the next columns in shared memory. The other columns should stay in L2. Therefore reads of
// kept columns and writes of the gradient have evict-first hints (load_once, store_once).
template <int kThreads, int kCount, bool kFast, class Cap, int kHeld = 0>
struct Row {
  static constexpr std::int64_t kHeldColumns = std::int64_t{kHeld} * kThreads * kCount;
  const float* x;
  std::int64_t columns;
  Cap capped;
  std::int64_t kept = 0;  // columns kept in registers or shared memory: a multiple of kCount, or 0
  float held[kHeld > 0 ? kHeld : 1][kCount] = {};

  // Returns the address in shared memory of column i >= kHeldColumns.
  PRIMUS_DEVICE static float* memory(std::int64_t i) {
    return reinterpret_cast<float*>(dynamic_shared()) + (i - kHeldColumns);
  }
  PRIMUS_DEVICE static std::int64_t held_column(int n) {
    return (std::int64_t{n} * kThreads + thread()) * kCount;
  }
  PRIMUS_DEVICE static float exponential(float x) { return kFast ? fast_exp(x) : ::expf(x); }

  // Reads the row once. When a larger logit appears, the sum so far is scaled down.
  PRIMUS_DEVICE SoftmaxStatistics statistics() {
    float largest = -infinity(), part = 0;
    const auto take = [&](const float(&logits)[kCount]) {
      float found = largest, v[kCount];
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        v[k] = capped(logits[k]);
        found = ::fmaxf(found, v[k]);
      }
      const float from = exponent_base(found);
      if (found != largest) part *= exponential(largest - from);
      largest = found;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) part += exponential(v[k] - from);
    };
    PRIMUS_UNROLL
    for (int n = 0; n < kHeld; ++n) {
      if (held_column(n) < columns) load_once<kCount>(x + held_column(n), held[n]);
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kHeld; ++n) {
      if (held_column(n) < columns) take(held[n]);
    }
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = kHeldColumns + thread() * kCount; i < columns; i += kThreads * kCount) {
      float v[kCount];
      if (i < kept) {
        load_once<kCount>(x + i, v);
        store<kCount>(memory(i), v);
      } else {
        load<kCount>(x + i, v);
      }
      take(v);
    }
    const float of_all = block_reduce<kThreads>(largest, Maximum{});
    const auto scale = static_cast<double>(::expf(exponent_base(largest) - exponent_base(of_all)));
    return {of_all,
            block_reduce<kThreads>(static_cast<double>(part) * (largest == -infinity() ? 1.0 : scale))};
  }

  // Computes the further sums of a row whose largest logit is `largest`.
  PRIMUS_DEVICE SoftmaxMoments moments(float largest) const {
    const float base = exponent_base(largest);
    float first = 0, squares = 0;
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = thread() * kCount; i < columns; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float relative = bounded_relative(capped(v[k]) - base), e = exponential(relative);
        first += e * relative;
        squares += e * e;
      }
    }
    SoftmaxMoments all;
    all.first = block_reduce<kThreads>(static_cast<double>(first));
    all.squares = block_reduce<kThreads>(static_cast<double>(squares));
    return all;
  }

  // Computes the gradient of the loss `weight` · (log(sum) - label_logit). `label_logit` is the label's
  // capped logit minus the largest; `label` is the label's column, or a number that is not a column of this
  // row. d may be x. Visits the row backwards, because the end of the row was read last and is still in the
  // cache. `slope` adds the gradient of the entropy's part of the loss.
  template <class T, class Slope = NoEntropySlope>
  PRIMUS_DEVICE void gradient(T* d, float weight, const SoftmaxStatistics& row, std::int64_t label,
                              double label_logit, Slope slope = {}) const {
    const float scale = row.gradient_scale(weight), of_label = row.label_gradient(weight, label_logit);
    const auto give = [&](std::int64_t i, float(&v)[kCount]) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float y = capped(v[k]);
        const float e = exponential(y - row.largest);
        v[k] = slope.add_to(i + k == label ? of_label : scale * e, e, y - row.largest) * capped.slope(y);
      }
      store_once<kCount>(d + i, v);
    };
    constexpr int kAtOnce = 4;
    constexpr std::int64_t kStep = kThreads * kCount * kAtOnce;
    for (std::int64_t begin = kHeldColumns + (columns - 1 - kHeldColumns) / kStep * kStep;
         begin >= kHeldColumns; begin -= kStep) {
      const std::int64_t first = begin + thread() * kCount;
      float v[kAtOnce][kCount];
      PRIMUS_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const std::int64_t i = first + n * kThreads * kCount;
        if (i < columns) load<kCount>(i < kept ? memory(i) : x + i, v[n]);
      }
      PRIMUS_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const std::int64_t i = first + n * kThreads * kCount;
        if (i < columns) give(i, v[n]);
      }
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kHeld; ++n) {
      if (held_column(n) >= columns) continue;
      float v[kCount];
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) v[k] = held[n][k];
      give(held_column(n), v);
    }
  }

  // Writes zeros for a masked token, even if its logits are NaN.
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

// With large blocks, the GPU processes few rows at a time, so these rows stay in the cache between the two
// passes.
constexpr int kRowThreads = 1024;

// The columns that a block of a pair processes. Without pairs, one block processes the entire row.
template <bool kPairs>
struct Share {
  std::int64_t token, first, columns;
  int rank;

  template <int kCount>
  PRIMUS_DEVICE static Share of(std::int64_t vocab) {
    if constexpr (kPairs) {
      const std::int64_t half = half_of(vocab, kCount);
      const int rank = static_cast<int>(block() % 2);
      return {block() / 2, rank * half, rank == 0 ? half : vocab - half, rank};
    } else {
      return {block(), 0, vocab, 0};
    }
  }
  static constexpr std::int64_t half_of(std::int64_t vocab, std::int64_t count) {
    return (vocab + 2 * count - 1) / (2 * count) * count;
  }
  // Returns the statistics of the row, from those of this block's columns. Both blocks get the same bits.
  PRIMUS_DEVICE SoftmaxStatistics of_row(const SoftmaxStatistics& own) const {
    if constexpr (kPairs) return exchange(own);
    return own;
  }

 private:
  PRIMUS_DEVICE SoftmaxStatistics exchange(const SoftmaxStatistics& own) const {
    struct Both {
      double largest[2], sum[2];
    };
    Both& both = shared<Both>();
    PairBarrier::wait();
    if (thread() < 2) {
      store_in_pair(&both.largest[rank], thread(), static_cast<double>(own.largest));
      store_in_pair(&both.sum[rank], thread(), own.sum);
    }
    PairBarrier::begin();
    PairBarrier::wait();
    const auto one = static_cast<float>(both.largest[0]), other = static_cast<float>(both.largest[1]);
    const float largest = ::fmaxf(one, other), base = exponent_base(largest);
    const auto part = [&](float of_part, double sum) {
      if (of_part == -infinity()) return 0.0;  // all logits of this half are -inf
      return sum * static_cast<double>(::expf(exponent_base(of_part) - base));
    };
    return {largest, part(one, both.sum[0]) + part(other, both.sum[1])};
  }
};

// With kLikeParts, the sum of exponentials has the bits of Part, which may compute the same row in another
// pass.
template <class T, int kCount, bool kLikeParts, class Cap, bool kPairs = false>
struct Loss {
  static constexpr int kThreads = kRowThreads;
  // With more loads per thread, too few registers would be left for the computation.
  static constexpr int kHeld = std::is_same_v<T, BFloat16> ? 6 : 4;
  using OwnRow = Row<kThreads, kCount, std::is_same_v<T, BFloat16> && !kLikeParts, Cap, kHeld>;
  const float* logits;
  const std::int32_t* labels;
  const float* weights;
  float* loss;
  T* d_logits;  // may be null; may share the memory of logits
  std::int64_t vocab, kept;
  Fault* fault;
  Cap capped;

  PRIMUS_DEVICE void operator()() const {
    const auto share = Share<kPairs>::template of<kCount>(vocab);
    const std::int64_t token = share.token, from = token * vocab + share.first;
    OwnRow row{logits + from, share.columns, capped, kept};
    T* d = d_logits ? d_logits + from : nullptr;
    const float weight = weights[token];
    if (weight == 0) return row.mask(d, loss + token);
    if constexpr (kPairs) PairBarrier::begin();
    const SoftmaxStatistics of_share = row.statistics();
    const std::int32_t label = labels[token];
    const float logit = is_label(label, vocab, fault) ? capped(logits[token * vocab + label]) : infinity();
    SoftmaxStatistics of_row = share.of_row(of_share);
    if constexpr (kLikeParts) of_row.sum = static_cast<float>(of_row.sum);
    const double label_logit = of_row.relative(logit);
    if (thread() == 0 && share.rank == 0) loss[token] = of_row.loss(weight, label_logit);
    if (!d) return;
    barrier();  // every thread has read the label's logit, which the gradient may overwrite
    row.gradient(d, weight, of_row, label - share.first, label_logit);
  }
};

template <int kCount, bool kEntropy, class Cap>
struct Part {
  static constexpr std::int64_t kValues = kEntropy ? kEntropyValues : kCrossEntropyValues;
  static constexpr int kThreads = kRowThreads;
  const float* logits;
  const std::int32_t* labels;
  float* part;
  std::int64_t columns, first;
  Cap capped;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    Row<kThreads, kCount, false, Cap> row{logits + token * columns, columns, capped};
    const SoftmaxStatistics of_row = row.statistics();
    SoftmaxMoments moments;
    if constexpr (kEntropy) moments = row.moments(of_row.largest);
    if (thread() != 0) return;
    const std::int64_t label = labels[token] - first;
    float* const out = part + token * kValues;
    out[0] = of_row.largest;
    out[1] = static_cast<float>(of_row.sum);
    out[2] = label >= 0 && label < columns ? capped(row.x[label]) : -infinity();
    if constexpr (kEntropy) {
      out[3] = static_cast<float>(moments.first);
      out[4] = static_cast<float>(moments.squares);
    }
  }
};

template <class T, int kCount, bool kEntropy, class Cap>
struct LossOfParts {
  static constexpr std::int64_t kValues = kEntropy ? kEntropyValues : kCrossEntropyValues;
  static constexpr int kThreads = kRowThreads;
  const float* parts;
  const float* logits;
  const std::int32_t* labels;
  const float* weights;
  float* loss;
  T* d_logits;                    // may be null; may share the memory of logits
  const float* entropy_weights;   // may be null
  float *entropies, *collisions;  // may be null
  std::int64_t count, tokens, columns, first, vocab;
  Fault* fault;
  Cap capped;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    const Row<kThreads, kCount, std::is_same_v<T, BFloat16>, Cap> row{logits + token * columns, columns,
                                                                      capped};
    T* d = d_logits ? d_logits + token * columns : nullptr;
    const float weight = weights[token], entropy_weight = entropy_weights ? entropy_weights[token] : 0.0F;
    if (weight == 0 && entropy_weight == 0) {
      give(token, 0, 0);
      return row.mask(d, loss + token);
    }
    // Every thread computes the same result, because there are only a few parts.
    SoftmaxStatistics of_row{-infinity(), 0};
    SoftmaxMoments moments;
    float logit = -infinity();
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + (p * tokens + token) * kValues;
      of_row.largest = ::fmaxf(of_row.largest, part[0]);
      logit = ::fmaxf(logit, part[2]);  // fmaxf ignores NaN, but NaN is still part of the sum
    }
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + (p * tokens + token) * kValues;
      of_row.sum += of_row.of_part(part[0], part[1]);
      if constexpr (kEntropy) {
        moments.add_part(of_row.largest, {part[0], static_cast<double>(part[1])},
                         static_cast<double>(part[3]), static_cast<double>(part[4]));
      }
    }
    std::int64_t label = labels[token];
    if (weight == 0) {  // the label may be invalid
      label = first - 1;
      logit = of_row.largest;
    } else if (!is_label(labels[token], vocab, fault)) {
      logit = infinity();
    }
    const double label_logit = of_row.relative(logit);
    const float of_label = of_row.loss(weight, label_logit);
    if constexpr (kEntropy) {
      const double entropy = moments.entropy(of_row);
      give(token, static_cast<float>(entropy), static_cast<float>(moments.collision(of_row)));
      if (thread() == 0)
        loss[token] = of_label + static_cast<float>(static_cast<double>(entropy_weight) * entropy);
      if (d) {
        row.gradient(d, weight, of_row, label - first, label_logit,
                     EntropySlope(entropy_weight, of_row, moments));
      }
    } else {
      if (thread() == 0) loss[token] = of_label;
      if (d) row.gradient(d, weight, of_row, label - first, label_logit);
    }
  }

  PRIMUS_DEVICE void give(std::int64_t token, float entropy, float collision) const {
    if (thread() != 0) return;
    if (entropies) entropies[token] = entropy;
    if (collisions) collisions[token] = collision;
  }
};

// Returns the number of columns of a row that a block can keep in shared memory: 0 on AMD GPUs, because their
// shared memory is small and limits occupancy.
std::int64_t columns_in_shared(const Context& context) {
  constexpr std::int64_t kOwn = 1024;  // bytes reserved for reductions
  return kWarp == 32 ? (max_shared(context) - kOwn) / static_cast<std::int64_t>(sizeof(float)) : 0;
}

void cross_entropy(Context& context, const CrossEntropy& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t vocab = call.logits.shape[1];
    const auto* logits = context.data<float>(call.logits);
    T* d_logits = optional<T>(context, call.d_logits);
    with_vector<float>(rows_of_vectors<float>(vocab, logits, d_logits), [&](auto count) {
      constexpr int kCount = count;
      with_cap(call.cap, [&](auto capped) {
        with_flag(context.batch_invariant(), [&](auto like_parts) {
          using Kernel = Loss<T, kCount, like_parts, decltype(capped)>;
          // Without a gradient there is no second pass, so no columns are kept.
          constexpr std::int64_t kHeld = Kernel::OwnRow::kHeldColumns;
          const std::int64_t in_shared = d_logits ? columns_in_shared(context) : 0;
          const auto launch_as = [&](auto pairs, std::int64_t columns) {
            const std::int64_t kept =
                std::clamp<std::int64_t>(columns - kHeld, 0, in_shared) / kCount * kCount;
            const Loss<T, kCount, like_parts, decltype(capped), pairs> kernel{
                logits,
                context.data<std::int32_t>(call.labels),
                context.data<float>(call.weights),
                context.data<float>(call.loss),
                d_logits,
                vocab,
                kept > 0 ? kHeld + kept : 0,
                faults(context),
                capped};
            const auto bytes = static_cast<std::size_t>(kept) * sizeof(float);
            if constexpr (pairs) {
              launch_pairs(context, call.logits.shape[0], kernel, bytes);
            } else {
              launch(context, call.logits.shape[0], kernel, bytes);
            }
          };
          // A block reads the columns twice that it does not keep. L2 still holds these columns if a row is
          // short.
          if constexpr (kMayHavePairs && !like_parts) {
            if (d_logits && vocab > 2 * (kHeld + in_shared) && has_pairs(context))
              return launch_as(std::true_type{}, Share<true>::half_of(vocab, kCount));
          }
          launch_as(std::false_type{}, vocab);
        });
      });
    });
  });
}

// Calls body(std::bool_constant): whether partial results with this number of values are for entropies.
template <class Body>
void with_entropy(std::int64_t values, Body&& body) {
  if (values == kEntropyValues) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

void cross_entropy_part(Context& context, const CrossEntropyPart& call) {
  const std::int64_t columns = call.logits.shape[1];
  const auto* logits = context.data<float>(call.logits);
  with_vector<float>(rows_of_vectors<float>(columns, logits), [&](auto count) {
    constexpr int kCount = count;
    with_cap(call.cap, [&](auto capped) {
      with_entropy(call.part.shape[1], [&](auto entropy) {
        launch(context, call.logits.shape[0],
               Part<kCount, entropy, decltype(capped)>{logits, context.data<std::int32_t>(call.labels),
                                                       context.data<float>(call.part), columns, call.first,
                                                       capped});
      });
    });
  });
}

void cross_entropy_of_parts(Context& context, const CrossEntropyOfParts& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t tokens = call.logits.shape[0], columns = call.logits.shape[1];
    const auto* logits = context.data<float>(call.logits);
    T* d_logits = optional<T>(context, call.d_logits);
    with_vector<float>(rows_of_vectors<float>(columns, logits, d_logits), [&](auto count) {
      constexpr int kCount = count;
      with_cap(call.cap, [&](auto capped) {
        with_entropy(call.parts.shape[2], [&](auto entropy) {
          launch(context, tokens,
                 LossOfParts<T, kCount, entropy, decltype(capped)>{
                     context.data<float>(call.parts), logits, context.data<std::int32_t>(call.labels),
                     context.data<float>(call.weights), context.data<float>(call.loss), d_logits,
                     optional<float>(context, call.entropy_weights), optional<float>(context, call.entropies),
                     optional<float>(context, call.collisions), call.parts.shape[0], tokens, columns,
                     call.first, call.vocabulary, faults(context), capped});
        });
      });
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
