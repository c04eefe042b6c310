// Reductions whose order depends only on sizes: over the lanes of a warp, the threads of a block, long
// vectors, and columns of many rows.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

struct Plus {
  template <class T>
  PRIMUS_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
// Returns the larger value. If one value is NaN, returns the other.
struct Maximum {
  PRIMUS_DEVICE float operator()(float a, float b) const { return ::fmaxf(a, b); }
};

// Returns the reduction over all lanes of the warp to every lane.
template <class T, class Combine = Plus>
PRIMUS_DEVICE T warp_reduce(T value, Combine combine = {}) {
  PRIMUS_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, from_lane_xor(value, mask));
  return value;
}

// Returns the reduction over all threads of the block to every thread. Uses a barrier before and after.
template <int kThreads, class T, class Combine = Plus>
PRIMUS_DEVICE T block_reduce(T value, Combine combine = {}) {
  constexpr int kWarps = kThreads / kWarp;
  value = warp_reduce(value, combine);
  if constexpr (kWarps == 1) return value;
  struct Parts {
    T of_warp[kWarps];
  };
  Parts& parts = shared<Parts>();
  barrier();
  if (lane() == 0) parts.of_warp[warp()] = value;
  barrier();
  value = parts.of_warp[0];
  for (int w = 1; w < kWarps; ++w) value = combine(value, parts.of_warp[w]);
  return value;
}

// ---- Long vectors -------------------------------------------------------------------------------

// parts[block] = the sum of term(i) over the block's range of [0, n). The ranges depend only on n.
template <class Term, class Sum>
struct SumParts {
  static constexpr int kThreads = 512;
  Term term;
  Sum* parts;
  std::int64_t n, run;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t begin = block() * run, end = smaller(begin + run, n);
    Sum sum{};
    for (std::int64_t i = begin + thread(); i < end; i += kThreads) sum += term(i);
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) parts[block()] = sum;
  }
};

// Calls store(the sum of parts[0 .. count)). Runs in one block.
template <class Store, class Sum>
struct SumOfParts {
  static constexpr int kThreads = 256;
  Store store;
  const Sum* parts;
  std::int64_t count;

  PRIMUS_DEVICE void operator()() const {
    Sum sum{};
    for (std::int64_t i = thread(); i < count; i += kThreads) sum += parts[i];
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) store(sum);
  }
};

// Calls store(sum of term(0) ... term(n - 1)) on the device.
template <class Sum, class Term, class Store>
void ordered_sum(Context& context, std::int64_t n, const Term& term, const Store& store) {
  constexpr std::int64_t kSmallest = 8192, kMax = 2048;
  const std::int64_t run = std::max(blocks_for(n, kMax), kSmallest);
  const std::int64_t count = blocks_for(n, run);
  Sum* parts = partials<Sum>(context, std::max<std::int64_t>(count, 1));
  launch(context, count, SumParts<Term, Sum>{term, parts, n, run});
  launch(context, 1, SumOfParts<Store, Sum>{store, parts, count});
}

// ---- Columns ------------------------------------------------------------------------------------

// Divides rows of n columns into slices of consecutive rows. The division depends only on `rows` and n. If n
// is small, there are more slices, so that all parts of the GPU are busy.
struct RowSlices {
  RowSlices(std::int64_t rows, std::int64_t n)
      : rows_per_slice(std::max<std::int64_t>(
            blocks_for(rows, std::clamp<std::int64_t>((std::int64_t{1} << 20) / std::max<std::int64_t>(n, 1),
                                                      256, 2048)),
            8)),
        count(blocks_for(rows, rows_per_slice)) {}
  std::int64_t rows_per_slice, count;
};

inline std::int64_t row_sum_workspace(std::int64_t rows, std::int64_t n) {
  return RowSlices(rows, n).count * n * static_cast<std::int64_t>(sizeof(float));
}

// lines[slice][i] = the sum of term(row, i) over the rows of the slice, in order. A thread computes
// Term::kCount consecutive columns.
template <class Term>
struct RowSumParts {
  static constexpr int kThreads = 256, kCount = Term::kCount;
  Term term;
  float* lines;
  std::int64_t rows, n, rows_per_slice, slices;

  PRIMUS_DEVICE void operator()() const {
    // Threads are numbered across slices, so no thread of a block is idle if rows are narrow.
    const std::int64_t packs = n / kCount, pack = block() * kThreads + thread();
    const std::int64_t slice = pack / packs, i = pack % packs * kCount;
    if (slice >= slices) return;
    const std::int64_t begin = slice * rows_per_slice, end = smaller(begin + rows_per_slice, rows);
    float sum[kCount] = {};
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t row = begin; row < end; ++row) {
      float value[kCount];
      term(row, i, value);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) sum[k] += value[k];
    }
    store<kCount>(lines + slice * n + i, sum);
  }
};

// out[i] (+)= the sum over slices of lines[slice][i], rounded once. A column has kGroups threads, and each
// thread adds some slices. Then one thread adds the kGroups sums.
template <class T>
struct RowSum {
  static constexpr int kThreads = 1024, kColumns = 32, kGroups = kThreads / kColumns;
  const float* lines;
  T* out;
  std::int64_t n, slices;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    struct Parts {
      float at[kGroups][kColumns];
    };
    Parts& parts = shared<Parts>();
    const int column = thread() % kColumns, group = thread() / kColumns;
    const std::int64_t i = block() * kColumns + column;
    float sum = 0;
    if (i < n) {
      PRIMUS_UNROLL_BY(4)
      for (std::int64_t slice = group; slice < slices; slice += kGroups) sum += lines[slice * n + i];
    }
    parts.at[group][column] = sum;
    barrier();
    if (group != 0 || i >= n) return;
    float total = accumulate ? to_float(out[i]) : 0.0F;
    for (int g = 0; g < kGroups; ++g) total += parts.at[g][column];
    out[i] = from_float<T>(total);
  }
};

// out[i] (+)= the sum of lines[0 .. count)[i], i < n. `out`: fp32 or bf16.
inline void sum_of_lines(Context& context, const float* lines, std::int64_t n, std::int64_t count,
                         const Tensor& out, bool accumulate) {
  with_float_type(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, blocks_for(n, RowSum<T>::kColumns),
           RowSum<T>{lines, context.data<T>(out), n, count, accumulate});
  });
}

// out[i] (+)= the sum over rows of the terms of (row, i), i < n. term(row, i, values) assigns the terms of
// Term::kCount consecutive columns; n is a multiple of Term::kCount. `out`: fp32 or bf16.
template <class Term>
void row_sum(Context& context, std::int64_t rows, std::int64_t n, float* workspace, const Tensor& out,
             bool accumulate, const Term& term) {
  const RowSlices slices(rows, n);
  launch(context, blocks_for(slices.count * (n / Term::kCount), RowSumParts<Term>::kThreads),
         RowSumParts<Term>{term, workspace, rows, n, slices.rows_per_slice, slices.count});
  sum_of_lines(context, workspace, n, slices.count, out, accumulate);
}

}  // namespace primus::turbo::PRIMUS_GPU
