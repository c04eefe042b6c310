// A block processes one row: it computes the maximum, the sum of exponentials, and the gradient. If a row is
// too long for the memory of a block and the GPU has clusters, the blocks of a cluster share the row.
#include <algorithm>
#include <utility>

#include "device/gpu/clusters.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/cross_entropy/formula.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Like fast_exp(), but results below the smallest normal number are 0, which needs fewer instructions.
PRIMUS_DEVICE float fast_exp_or_zero(float x) {
#if PRIMUS_CUDA_ARCH >= 800
  constexpr float kLog2OfE = 1.44269504F;
  float result = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2OfE));
  return result;
#else
  return fast_exp(x);
#endif
}

// Processes columns of one row. Every thread of the block must call these functions, and every thread gets
// the result. A thread processes kCount logits at once. With kFast, exponentials are computed by
// fast_exp_or_zero(). Between statistics() and gradient(), the block keeps the first columns: kHeld loads per
// thread in registers, and the next columns in shared memory. The other columns should stay in L2. Therefore
// reads of kept columns and writes of the gradient have evict-first hints (load_once, store_once).
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
  PRIMUS_DEVICE static float exponential(float x) { return kFast ? fast_exp_or_zero(x) : ::expf(x); }

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
    const auto give = [&](std::int64_t i, const float(&v)[kCount]) {
      float given[kCount];
      const auto compute = [&](int k, auto of_loss) {
        const float y = capped(v[k]), e = exponential(y - row.largest);
        given[k] = slope.add_to(of_loss(e), e, y - row.largest) * capped.slope(y);
      };
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) compute(k, [&](float e) { return scale * e; });
      // Few threads have the label's column, so a branch is faster than a comparison for each column.
      if (label >= i && label < i + kCount) {
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) {
          if (i + k == label) compute(k, [&](float) { return of_label; });
        }
      }
      store_once<kCount>(d + i, given);
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
      give(held_column(n), held[n]);
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

// If a gradient is computed on a GPU with warps of 32, a multiprocessor runs four small blocks. While one
// block waits for logits or for the other blocks of its cluster, the other one computes or writes.
constexpr int kSharingThreads = 256, kSharingBlocks = 4;

// The columns that a block of a cluster of `size` blocks processes.
struct Share {
  static constexpr int kMaxSize = 8;
  std::int64_t token, first, columns;
  int rank, size;

  PRIMUS_DEVICE static Share of(std::int64_t vocab, std::int64_t count, int size) {
    if (size == 1) return {block(), 0, vocab, 0, 1};
    const std::int64_t most = largest(vocab, count, size);
    const int rank = static_cast<int>(block() % size);
    return {block() / size, rank * most, smaller(most, vocab - rank * most), rank, size};
  }
  // Returns the largest number of columns of a block, a multiple of `count`.
  static constexpr std::int64_t largest(std::int64_t vocab, std::int64_t count, int size) {
    return (vocab + size * count - 1) / (size * count) * count;
  }
  // Lets other blocks of the cluster write to this block's shared memory. Call it before of_row().
  PRIMUS_DEVICE void begin() const {
    if (size > 1) ClusterBarrier::begin();
  }
  // Returns the statistics of the row, from those of this block's columns. All blocks get the same bits.
  PRIMUS_DEVICE SoftmaxStatistics of_row(const SoftmaxStatistics& own) const {
    if (size == 1) return own;
    struct All {
      double largest[kMaxSize], sum[kMaxSize];
    };
    All& all = shared<All>();
    ClusterBarrier::wait();
    if (thread() < size) {
      store_in_cluster(&all.largest[rank], thread(), static_cast<double>(own.largest));
      store_in_cluster(&all.sum[rank], thread(), own.sum);
    }
    ClusterBarrier::begin();
    ClusterBarrier::wait();
    SoftmaxStatistics of_row{-infinity(), 0};
    for (int r = 0; r < size; ++r)
      of_row.largest = ::fmaxf(of_row.largest, static_cast<float>(all.largest[r]));
    const float base = exponent_base(of_row.largest);
    for (int r = 0; r < size; ++r) {
      const auto of_part = static_cast<float>(all.largest[r]);
      if (of_part == -infinity()) continue;  // all logits of this block are -inf
      of_row.sum += all.sum[r] * static_cast<double>(::expf(exponent_base(of_part) - base));
    }
    return of_row;
  }
};

// With kLikeParts, the sum of exponentials has the bits of Part, which may compute the same row in another
// pass. With kShares, a multiprocessor runs several blocks, and the blocks of a cluster share a row.
template <class T, int kCount, bool kLikeParts, class Cap, bool kShares>
struct Loss {
  static constexpr int kThreads = kShares ? kSharingThreads : kRowThreads;
  // With more loads per thread, too few registers would be left for the computation.
  static constexpr int kHeld = std::is_same_v<T, BFloat16> ? 6 : 4;
  using OwnRow = Row<kThreads, kCount, std::is_same_v<T, BFloat16> && !kLikeParts, Cap, kHeld>;
  const float* logits;
  const std::int32_t* labels;
  const float* weights;
  float* loss;
  T* d_logits;  // may be null; may share the memory of logits
  std::int64_t vocab, kept;
  int cluster;  // number of blocks that share a row
  Fault* fault;
  Cap capped;

  PRIMUS_DEVICE void operator()() const {
    const auto share = Share::of(vocab, kCount, kShares ? cluster : 1);
    const std::int64_t token = share.token, from = token * vocab + share.first;
    OwnRow row{logits + from, share.columns, capped, kept};
    T* d = d_logits ? d_logits + from : nullptr;
    const float weight = weights[token];
    if (weight == 0) return row.mask(d, loss + token);
    share.begin();
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

// Returns the number of columns that each of `blocks` blocks on a multiprocessor can keep in shared memory: 0
// on AMD GPUs, because their shared memory is small and limits occupancy.
std::int64_t columns_in_shared(const Context& context, int blocks) {
  constexpr std::int64_t kOwn = 1024;  // bytes reserved for reductions
  return kWarp == 32 ? shared_of_blocks(context, blocks, kOwn) / static_cast<std::int64_t>(sizeof(float)) : 0;
}

// Returns the smallest cluster whose blocks can keep all columns of a row, if each keeps `columns`. If there
// is none, returns the largest cluster, or 0 without clusters.
int cluster_for(const Context& context, std::int64_t vocab, std::int64_t count, std::int64_t columns) {
  const int most = std::min(max_cluster(context), Share::kMaxSize);
  int size = 1;
  while (size < most && Share::largest(vocab, count, size) > columns) size *= 2;
  return most == 1 && vocab > columns ? 0 : size;
}

template <class T, int kCount, bool kLikeParts, class Cap>
void cross_entropy_as(Context& context, const CrossEntropy& call, T* d_logits, Cap capped) {
  const std::int64_t tokens = call.logits.shape[0], vocab = call.logits.shape[1];
  // `columns`: of a block. Without a gradient there is no second pass, so no columns are kept.
  const auto kernel = [&](auto shares, int cluster, std::int64_t columns, std::int64_t in_shared) {
    using Kernel = Loss<T, kCount, kLikeParts, Cap, shares>;
    constexpr std::int64_t kHeld = Kernel::OwnRow::kHeldColumns;
    const std::int64_t kept =
        d_logits ? std::clamp<std::int64_t>(columns - kHeld, 0, in_shared) / kCount * kCount : 0;
    const Kernel made{context.data<float>(call.logits),
                      context.data<std::int32_t>(call.labels),
                      context.data<float>(call.weights),
                      context.data<float>(call.loss),
                      d_logits,
                      vocab,
                      kept > 0 ? kHeld + kept : 0,
                      cluster,
                      faults(context),
                      capped};
    return std::pair(made, static_cast<std::size_t>(kept) * sizeof(float));
  };
  if constexpr (kWarp == 32 && !kLikeParts) {
    constexpr std::int64_t kHeld = Loss<T, kCount, kLikeParts, Cap, true>::OwnRow::kHeldColumns;
    const std::int64_t in_shared = columns_in_shared(context, kSharingBlocks);
    const int cluster = d_logits ? cluster_for(context, vocab, kCount, kHeld + in_shared) : 0;
    if (cluster > 0) {
      const auto [made, bytes] =
          kernel(std::true_type{}, cluster, Share::largest(vocab, kCount, cluster), in_shared);
      return launch_clusters<kSharingBlocks>(context, tokens, cluster, made, bytes);
    }
  }
  // A block reads the columns twice that it does not keep.
  const auto [made, bytes] = kernel(std::false_type{}, 1, vocab, columns_in_shared(context, 1));
  launch(context, tokens, made, bytes);
}

void cross_entropy(Context& context, const CrossEntropy& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t vocab = call.logits.shape[1];
    T* d_logits = optional<T>(context, call.d_logits);
    with_vector<float>(rows_of_vectors<float>(vocab, context.data<float>(call.logits), d_logits),
                       [&](auto count) {
                         with_cap(call.cap, [&](auto capped) {
                           with_flag(context.batch_invariant(), [&](auto like_parts) {
                             cross_entropy_as<T, decltype(count)::value, decltype(like_parts)::value>(
                                 context, call, d_logits, capped);
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
