// Parts of the kernels of gpu_few_rows.h. The parts load rows of x into shared memory, process results, and
// define the tiles of rows of W. kFewRowThreads threads of a block execute this code; `meet` is a barrier
// among these threads.
#pragma once

#include "turbo/gpu/mma.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kFewRows = 2;
constexpr int kFewRowThreads = 256;
constexpr int kFewRowWarps = kFewRowThreads / kWarp;

// ---- Rows ---------------------------------------------------------------------------------------

// Copies rows to shared memory. Padding puts the starts of adjacent rows into different banks.
struct StagedRows {
  static constexpr int kLine = 8, kPadding = 32;
  const BFloat16* x;
  int rows, in;

  static constexpr std::int64_t shared_bytes(std::int64_t rows, std::int64_t in) {
    return rows * (in + kPadding) * static_cast<std::int64_t>(sizeof(BFloat16));
  }
  PRIMUS_DEVICE BFloat16* staged(int row) const {
    return reinterpret_cast<BFloat16*>(dynamic_shared()) + row * (in + kPadding);
  }
  PRIMUS_DEVICE Bytes16 line(int row, int at) const { return load_line(staged(row) + at); }

  template <class Meet>
  PRIMUS_DEVICE void prepare(const Meet& meet) const {
    wait_for_previous();
    for (int row = 0; row < rows; ++row) {
      const BFloat16* from = x + static_cast<std::int64_t>(row) * in;
      BFloat16* to = staged(row);
      PRIMUS_UNROLL_BY(4)
      for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine)
        *reinterpret_cast<Bytes16*>(to + i) = load_line(from + i);
    }
    meet();
  }
};

// Computes RMSNorm of x + delta, with the same bits as rms_norm/gpu.cu. Every block computes the norm, and
// one block also writes x + delta.
struct NormedRows {
  static constexpr int kLine = StagedRows::kLine;
  StagedRows of;
  const BFloat16 *delta, *weight;  // delta may be null
  BFloat16* sum;
  float eps, offset;

  // Returns whether rms_norm/gpu.cu uses a block for each row of this length. For shorter rows, it uses one
  // warp per row, and so another order of additions.
  static constexpr bool has_order(std::int64_t in) { return in > std::int64_t{4} * kWarp * kLine; }

  PRIMUS_DEVICE Bytes16 line(int row, int at) const { return of.line(row, at); }

  template <class Meet>
  PRIMUS_DEVICE void prepare(const Meet& meet) const {
    prepare(meet, block() == 0);
  }
  template <class Meet>
  PRIMUS_DEVICE void prepare(const Meet& meet, bool writes_sum) const {
    struct Squares {
      float of_warp[kFewRows][kFewRowWarps];
    };
    Squares& squares = shared<Squares>();
    const int in = of.in;
    for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine) prefetch(weight + i);
    wait_for_previous();
    for (int row = 0; row < of.rows; ++row) {
      const std::int64_t first = static_cast<std::int64_t>(row) * in;
      BFloat16* to = of.staged(row);
      float mine = 0;
      PRIMUS_UNROLL_BY(2)
      for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine) {
        float v[kLine];
        load<kLine>(of.x + first + i, v);
        if (delta) {
          float d[kLine];
          load<kLine>(delta + first + i, d);
          // The norm uses the sum as it is stored, that is, after rounding.
          PRIMUS_UNROLL
          for (int k = 0; k < kLine; ++k) v[k] = to_float(from_float<BFloat16>(v[k] + d[k]));
          if (writes_sum) store<kLine>(sum + first + i, v);
        }
        store<kLine>(to + i, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k) mine = multiply_add(v[k], v[k], mine);
      }
      mine = warp_reduce(mine);
      if (lane() == 0) squares.of_warp[row][warp()] = mine;
    }
    meet();
    for (int row = 0; row < of.rows; ++row) {
      float all = squares.of_warp[row][0];
      PRIMUS_UNROLL
      for (int w = 1; w < kFewRowWarps; ++w) all += squares.of_warp[row][w];
      const float scale = 1.0F / ::sqrtf(all / static_cast<float>(in) + eps);
      BFloat16* const to = of.staged(row);
      PRIMUS_UNROLL_BY(2)
      for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine) {
        float v[kLine], w[kLine];
        load<kLine>(to + i, v);  // loads elements that this thread has written, so no barrier is needed
        load<kLine>(weight + i, w);
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k) v[k] = v[k] * scale * (w[k] + offset);
        store<kLine>(to + i, v);
      }
    }
    meet();
  }
};

// ---- Results ------------------------------------------------------------------------------------

// Maps row n of a tile to a row of W, and stores the products of this row with rows of x. Tile rows after the
// end of W read the last row of W again. The products of these tile rows are not stored.
template <class C>
struct PlainResults {
  static constexpr bool kPaired = false;
  C* y;
  const BFloat16* bias;  // may be null
  int out;

  PRIMUS_DEVICE int count() const { return out; }
  PRIMUS_DEVICE int row_of(int i) const { return i; }
  PRIMUS_DEVICE void store_result(int row, int i, float total) const {
    C result = from_float<C>(total);
    if (bias) result = from_float<C>(to_float(result) + to_float(bias[i]));
    y[static_cast<std::int64_t>(row) * out + i] = result;
  }
};

// Pairs of rows of W: pair i has rows r = i / run * 2 * run + i % run and r + run.
struct Pairs {
  static constexpr bool kPaired = true;
  int pairs, run;

  PRIMUS_DEVICE int count() const { return pairs; }
  PRIMUS_DEVICE int row_of(int i) const { return i + i / run * run; }
};

// Computes swiglu of gate and up, which are first rounded as if they were stored.
struct GatedResults : Pairs {
  BFloat16* y;

  PRIMUS_DEVICE void store_result(int row, int i, float gate, float up) const {
    const float g = to_float(from_float<BFloat16>(gate)), u = to_float(from_float<BFloat16>(up));
    y[static_cast<std::int64_t>(row) * pairs + i] = from_float<BFloat16>(g * sigmoid(g) * u);
  }
};

// Each row of the results consists of heads with 2 * run columns. The first `heads` heads are rotated by the
// position of their row.
struct RotatedResults : Pairs {
  BFloat16* y;
  const BFloat16* bias;  // may be null
  const std::int32_t* positions;
  const float* table;
  int heads;

  PRIMUS_DEVICE void store_result(int row, int i, float first, float second) const {
    const int at = row_of(i);
    float x0 = to_float(from_float<BFloat16>(first)), x1 = to_float(from_float<BFloat16>(second));
    if (bias) {
      x0 = to_float(from_float<BFloat16>(x0 + to_float(bias[at])));
      x1 = to_float(from_float<BFloat16>(x1 + to_float(bias[at + run])));
    }
    if (i < heads * run) {
      const float* cosines = table + static_cast<std::int64_t>(positions[row]) * 2 * run + i % run;
      const float c = cosines[0], s = cosines[run];
      const float turned = x0 * c - x1 * s;
      x1 = x1 * c + x0 * s;
      x0 = turned;
    }
    BFloat16* to = y + static_cast<std::int64_t>(row) * 2 * pairs + at;
    to[0] = from_float<BFloat16>(x0), to[run] = from_float<BFloat16>(x1);
  }
};

// ---- Tiles ----

// Number of rows of a stripe: the rows of W that a warp reads with one load per lane.
constexpr int kStripeRows = kWarp == 32 ? 8 : 16;

// Maps the rows of a tile to rows of W, and adds the sums of all warps.
template <class Rows, class Results>
struct FewRowTiles {
  using StartsEarly = void;
  static constexpr int kItems =
      Results::kPaired ? kStripeRows / 2 : kStripeRows;       // number of result columns per tile
  static constexpr int kStep = kFewRowWarps * Stripe::kCols;  // columns

  Rows rows_of_x;
  Results results;
  const BFloat16* w;
  int rows, in, tiles;

  struct Sums {
    // There are two sets of sums, because some warps write the sums of a tile while other warps still add the
    // sums of the previous tile.
    float of_warp[2][kFewRowWarps][kFewRows][kStripeRows];
  };

  // Returns the row of W that is row n of a tile.
  PRIMUS_DEVICE const BFloat16* row_of(int tile, int n) const {
    const int item = tile * kItems + n % kItems, last = results.count() - 1;
    int row = results.row_of(item < last ? item : last);
    if constexpr (Results::kPaired) row += n / kItems * results.run;
    return w + static_cast<std::int64_t>(row) * in;
  }

  // Adds the sums of all warps and stores the results. All threads that have sums call this function; meet()
  // is a barrier among these threads.
  template <class Meet>
  PRIMUS_DEVICE void finish(int tile, int parity, const Accumulator& mine, const Meet& meet) const {
    auto& of_warp = shared<Sums>().of_warp[parity];
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int row = Accumulator::row(i), n = Accumulator::col(i);
      if (row < kFewRows && n < kStripeRows) of_warp[warp()][row][n] = mine.at[i];
    }
    meet();
    const auto total = [&](int row, int n) {
      float sum = 0;
      PRIMUS_UNROLL
      for (int j = 0; j < kFewRowWarps; ++j) sum += of_warp[j][row][n];
      return sum;
    };
    static_assert(kItems * kFewRows <= kFewRowThreads);
    const int n = thread() % kItems, row = thread() / kItems, item = tile * kItems + n;
    if (row >= rows || item >= results.count()) return;
    if constexpr (Results::kPaired) {
      results.store_result(row, item, total(row, n), total(row, kItems + n));
    } else {
      results.store_result(row, item, total(row, n));
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
