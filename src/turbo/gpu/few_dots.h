// Products of a few bf16 rows and one matrix, or of each row and one of several matrices, by ordinary
// multiply-adds. With one or two rows, the time of the product is that of reading the weights.
#pragma once

#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

// All rows use the same matrix. kKnown: the matrix of a row does not depend on the previous kernel.
struct OneMatrix {
  static constexpr bool kKnown = true;
  PRIMUS_DEVICE std::int64_t matrix_of(std::int64_t) const { return 0; }
  PRIMUS_DEVICE std::int64_t place_of(std::int64_t row) const { return row; }
  PRIMUS_DEVICE std::int64_t first_of(std::int64_t, std::int64_t) const { return 0; }
};

// Row r uses the matrix of head r % heads. A head has `step` rows of weights, and the head's matrix begins at
// row `first` of these rows.
struct MatrixOfHead {
  static constexpr bool kKnown = true;
  std::int64_t heads, step, first;
  PRIMUS_DEVICE std::int64_t matrix_of(std::int64_t row) const { return row % heads; }
  PRIMUS_DEVICE std::int64_t place_of(std::int64_t row) const { return row; }
  PRIMUS_DEVICE std::int64_t first_of(std::int64_t matrix, std::int64_t) const {
    return matrix * step + first;
  }
};

// Rows [offsets[e], offsets[e + 1]) use matrix e; later rows have no matrix. Row r is row picks[r] of x, or
// row r of x if `picks` is null.
struct MatrixOfExpert {
  static constexpr bool kKnown = false;
  const std::int32_t *offsets, *picks;
  std::int64_t experts;

  // Returns the matrix of a row, or a negative number if the row has no matrix. All lanes of a warp call this
  // function. The lanes together count the experts whose rows end at or before the row. This way, all loads
  // run concurrently.
  PRIMUS_DEVICE std::int64_t matrix_of(std::int64_t row) const {
    std::int32_t before = 0;
    for (std::int64_t e = lane(); e < experts; e += kWarp) before += offsets[e + 1] <= row ? 1 : 0;
    before = warp_reduce(before);
    return before < experts ? before : -1;
  }
  PRIMUS_DEVICE std::int64_t place_of(std::int64_t row) const { return picks ? picks[row] : row; }
  // Returns the first row of a matrix. Every matrix has `out` rows.
  PRIMUS_DEVICE std::int64_t first_of(std::int64_t matrix, std::int64_t out) const { return matrix * out; }
};

// Adds to sums[j] this lane's share of the product of a row of x and row w[j] of weights. The sum of all
// lanes is the product. The loads of kSteps steps run concurrently, also in the last group of steps, which
// may be incomplete.
template <int kSteps, class W, int kRows>
PRIMUS_DEVICE void add_dots(const BFloat16* x, const W* const (&w)[kRows], std::int64_t in,
                            float (&sums)[kRows]) {
  constexpr int kLine = 8, kStep = kWarp * kLine;
  for (std::int64_t begin = lane() * kLine; begin < in; begin += kSteps * kStep) {
    Pack<BFloat16, kLine> a[kSteps];
    Pack<W, kLine> b[kSteps][kRows];
    PRIMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t i = begin + step * kStep;
      const bool there = i < in;
      a[step] = there ? *reinterpret_cast<const Pack<BFloat16, kLine>*>(x + i) : Pack<BFloat16, kLine>{};
      PRIMUS_UNROLL
      for (int j = 0; j < kRows; ++j)
        b[step][j] = there ? *reinterpret_cast<const Pack<W, kLine>*>(w[j] + i) : Pack<W, kLine>{};
    }
    PRIMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      PRIMUS_UNROLL
      for (int j = 0; j < kRows; ++j) {
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k)
          sums[j] = multiply_add(to_float(a[step].at[k]), to_float(b[step][j].at[k]), sums[j]);
      }
    }
  }
}

// y[r, :] = (row r of x, as given by Rows) · W[matrix of r]ᵀ. Rows without a matrix are not written. A warp
// computes kOutputs elements of a row. Concurrent blocks compute the same columns: rows with the same matrix
// read the matrix from the cache. `in` is a multiple of 8, and rows are aligned to 16 bytes.
template <class W, class C, class Rows, int kOutputs>
struct FewDots {
  static constexpr int kThreads = 256, kOfBlock = kThreads / kWarp * kOutputs;
  using StartsEarly = void;
  const BFloat16* x;
  const W* w;
  C* y;
  std::int64_t rows, out, in;
  Rows where;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block() % rows, first = block() / rows * kOfBlock + warp() * kOutputs;
    let_next_begin();
    if constexpr (Rows::kKnown) {
      if (first < out) prefetch_weights(row, first);
    }
    wait_for_previous();
    if (first >= out) return;
    const std::int64_t matrix = where.matrix_of(row);
    if (matrix < 0) return;
    float sums[kOutputs] = {};
    const BFloat16* const from = x + where.place_of(row) * in;
    const W* weights[kOutputs];
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j)
      weights[j] = w + (where.first_of(matrix, out) + smaller(first + j, out - 1)) * in;
    add_dots<kOutputs == 1 ? 4 : 8 / kOutputs>(from, weights, in, sums);
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      const float sum = warp_reduce(sums[j]);
      if (lane() == 0 && first + j < out) y[row * out + first + j] = from_float<C>(sum);
    }
  }

  // Fetches the weights of this warp into L2 while the previous kernel still computes x.
  PRIMUS_DEVICE void prefetch_weights(std::int64_t row, std::int64_t first) const {
    constexpr std::int64_t kCacheLine = 128 / static_cast<std::int64_t>(sizeof(W));
    const std::int64_t begin = where.first_of(where.matrix_of(row), out);
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      const W* const weights = w + (begin + smaller(first + j, out - 1)) * in;
      for (std::int64_t i = lane() * kCacheLine; i < in; i += kWarp * kCacheLine) prefetch(weights + i);
    }
  }
};

template <int kOutputs, class W, class C, class Rows>
void few_dots(Context& context, const BFloat16* x, const W* w, C* y, std::int64_t rows, std::int64_t out,
              std::int64_t in, const Rows& where) {
  using Kernel = FewDots<W, C, Rows, kOutputs>;
  launch(context, rows * blocks_for(out, Kernel::kOfBlock), Kernel{x, w, y, rows, out, in, where});
}

}  // namespace primus::turbo::PRIMUS_GPU
