// Products of a few bf16 rows and one matrix, or of each row and one of several matrices, by ordinary
// multiply-adds. With one or two rows, the time of the product is that of reading the weights.
#pragma once

#include <bit>

#include "turbo/gpu/prefetch_run.h"
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

// Eight elements as they are in memory, so two bf16 elements share a register until they are used. Each
// element of a Pack takes a register.
template <class T>
struct Line {
  static constexpr int kSize = 8, kParts = kSize / kVector<T>;
  Bytes16 of[kParts];

  // Returns zeros if the elements are not `there`.
  PRIMUS_DEVICE static Line load(const T* from, bool there) {
    Line line{};
    PRIMUS_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (there) line.of[i] = load_line(from + i * kVector<T>);
    }
    return line;
  }
  PRIMUS_DEVICE float at(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return std::bit_cast<float>(of[i / 4].word[i % 4]);
    } else {
      const std::uint32_t pair = of[0].word[i / 2];
      return std::bit_cast<float>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000U);
    }
  }
};

// A lane loads these elements from kRows rows of weights in kSteps steps. All loads of a group run
// concurrently, also if the rows end within the group.
template <int kSteps, class W, int kRows>
struct DotGroup {
  static constexpr int kStep = kWarp * Line<W>::kSize, kColumns = kSteps * kStep;
  Line<W> of[kSteps][kRows];

  PRIMUS_DEVICE static std::int64_t first() { return lane() * Line<W>::kSize; }
  // `begin`: this lane's column of the first step.
  PRIMUS_DEVICE void load(const W* const (&w)[kRows], std::int64_t begin, std::int64_t in) {
    PRIMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t i = begin + step * kStep;
      PRIMUS_UNROLL
      for (int j = 0; j < kRows; ++j) of[step][j] = Line<W>::load(w[j] + i, i < in);
    }
  }
  // Adds to sums[j] the products with a row of x.
  PRIMUS_DEVICE void add(const BFloat16* x, std::int64_t begin, std::int64_t in, float (&sums)[kRows]) const {
    Line<BFloat16> a[kSteps];
    PRIMUS_UNROLL
    for (int step = 0; step < kSteps; ++step)
      a[step] = Line<BFloat16>::load(x + begin + step * kStep, begin + step * kStep < in);
    PRIMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      PRIMUS_UNROLL
      for (int j = 0; j < kRows; ++j) {
        PRIMUS_UNROLL
        for (int k = 0; k < Line<W>::kSize; ++k)
          sums[j] = multiply_add(a[step].at(k), of[step][j].at(k), sums[j]);
      }
    }
  }
};

// Adds to sums[j] this lane's share of the product of a row of x and row w[j] of weights. The sum of all
// lanes is the product. If `loaded`, the group already has the first weights.
template <int kSteps, class W, int kRows>
PRIMUS_DEVICE void add_dots(DotGroup<kSteps, W, kRows>& group, bool loaded, const BFloat16* x,
                            const W* const (&w)[kRows], std::int64_t in, float (&sums)[kRows]) {
  using Group = DotGroup<kSteps, W, kRows>;
  for (std::int64_t begin = Group::first(); begin < in; begin += Group::kColumns) {
    if (!loaded) group.load(w, begin, in);
    loaded = false;
    group.add(x, begin, in, sums);
  }
}
template <int kSteps, class W, int kRows>
PRIMUS_DEVICE void add_dots(const BFloat16* x, const W* const (&w)[kRows], std::int64_t in,
                            float (&sums)[kRows]) {
  DotGroup<kSteps, W, kRows> group;
  add_dots(group, false, x, w, in, sums);
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
    Group group;
    const W* weights[kOutputs];
    let_next_begin();
    if constexpr (Rows::kKnown) {
      // Loads the first weights, and fetches the others into L2, while the previous kernel still computes x.
      if (first < out) {
        find(weights, where.matrix_of(row), first);
        group.load(weights, Group::first(), in);
        if (in > Group::kColumns && lane() < kOutputs) {
          prefetch_run(row_of(where.matrix_of(row), first + lane()) + Group::kColumns,
                       static_cast<int>((in - Group::kColumns) * sizeof(W)));
        }
      }
    }
    wait_for_previous();
    if (first >= out) return;
    const std::int64_t matrix = where.matrix_of(row);
    if (matrix < 0) return;
    find(weights, matrix, first);
    float sums[kOutputs] = {};
    add_dots(group, Rows::kKnown, x + where.place_of(row) * in, weights, in, sums);
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      const float sum = warp_reduce(sums[j]);
      if (lane() == 0 && first + j < out) y[row * out + first + j] = from_float<C>(sum);
    }
  }

 private:
  using Group = DotGroup<8 / kOutputs, W, kOutputs>;
  PRIMUS_DEVICE const W* row_of(std::int64_t matrix, std::int64_t at) const {
    return w + (where.first_of(matrix, out) + smaller(at, out - 1)) * in;
  }
  PRIMUS_DEVICE void find(const W* (&weights)[kOutputs], std::int64_t matrix, std::int64_t first) const {
    PRIMUS_UNROLL
    for (int j = 0; j < kOutputs; ++j) weights[j] = row_of(matrix, first + j);
  }
};

template <int kOutputs, class W, class C, class Rows>
void few_dots(Context& context, const BFloat16* x, const W* w, C* y, std::int64_t rows, std::int64_t out,
              std::int64_t in, const Rows& where) {
  using Kernel = FewDots<W, C, Rows, kOutputs>;
  launch(context, rows * blocks_for(out, Kernel::kOfBlock), Kernel{x, w, y, rows, out, in, where});
}

}  // namespace primus::turbo::PRIMUS_GPU
