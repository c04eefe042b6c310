// Products of a few bf16 rows and one matrix, or of each row and one of several matrices, by ordinary
// multiply-adds. With one or two rows, the time of the product is that of reading the weights.
#pragma once

#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

// All rows use the same matrix.
struct OneMatrix {
  PRIMUS_DEVICE std::int64_t matrix_of(std::int64_t) const { return 0; }
  PRIMUS_DEVICE std::int64_t place_of(std::int64_t row) const { return row; }
  PRIMUS_DEVICE std::int64_t first_of(std::int64_t, std::int64_t) const { return 0; }
};

// Row r uses the matrix of head r % heads. A head has `step` rows of weights, and the head's matrix begins at
// row `first` of these rows.
struct MatrixOfHead {
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

// y[r, :] = (row r of x, as given by Rows) · W[matrix of r]ᵀ. Rows without a matrix are not written. A warp
// computes kOutputs elements of a row. Concurrent blocks compute the same columns: rows with the same matrix
// read the matrix from the cache. `in` is a multiple of 8, and rows are aligned to 16 bytes.
template <class W, class C, class Rows, int kOutputs>
struct FewDots {
  static constexpr int kThreads = 256, kOfBlock = kThreads / kWarp * kOutputs, kLine = 8;
  using StartsEarly = void;
  const BFloat16* x;
  const W* w;
  C* y;
  std::int64_t rows, out, in;
  Rows where;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block() % rows, first = block() / rows * kOfBlock + warp() * kOutputs;
    let_next_begin();
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
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = lane() * kLine; i < in; i += kWarp * kLine) {
      float a[kLine], b[kOutputs][kLine];
      load<kLine>(from + i, a);
      PRIMUS_UNROLL
      for (int j = 0; j < kOutputs; ++j) load<kLine>(weights[j] + i, b[j]);
      PRIMUS_UNROLL
      for (int j = 0; j < kOutputs; ++j) {
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k) sums[j] = multiply_add(a[k], b[j][k], sums[j]);
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      const float sum = warp_reduce(sums[j]);
      if (lane() == 0 && first + j < out) y[row * out + first + j] = from_float<C>(sum);
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
