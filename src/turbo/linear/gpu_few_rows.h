// Products of one or two rows, y = x · Wᵀ, as decoding has them: bound by reading W once. The kernel is put
// together from what its rows are made of (StagedRows, NormedRows) and what becomes of a result
// (PlainResults, GatedResults, RotatedResults).
//
// Blocks stay on the machine and take one tile of rows of W after the other, so that weights stream without a
// pause; the first ones are read, and more are asked into the cache, while the kernel in front still makes x.
// Weights go straight from global memory into operands; the matrix units make sums so cheap that reading is
// all there is to do. The warps of a block share the columns and add their sums up in their order: an element
// of a result has the same bits whatever x is made from, and whatever other rows and columns there are.
#pragma once

#include "turbo/gpu/mma.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kFewRows = 2;
constexpr int kFewRowThreads = 256;
constexpr int kFewRowWarps = kFewRowThreads / kWarp;
// Rows of W of which a warp reads a stripe with one load of every lane.
constexpr int kStripeRows = kWarp == 32 ? 8 : 16;

// Asks for a run of bytes to come into the cache that all cores share, by one thread, where the machine can
// (Hopper). Address and size are multiples of 16.
PRIMUS_DEVICE void prefetch_run([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
#if PRIMUS_CUDA_ARCH >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}

// ---- Rows ---------------------------------------------------------------------------------------

// Copied to shared memory first. Neighbouring rows begin in other banks.
struct StagedRows {
  static constexpr int kLine = 8, kPadding = 32;
  const BFloat16* x;
  int rows, in;

  static std::int64_t shared_bytes(std::int64_t rows, std::int64_t in) {
    return rows * (in + kPadding) * static_cast<std::int64_t>(sizeof(BFloat16));
  }
  PRIMUS_DEVICE BFloat16* staged(int row) const {
    return reinterpret_cast<BFloat16*>(dynamic_shared()) + row * (in + kPadding);
  }
  PRIMUS_DEVICE Bytes16 line(int row, int at) const { return load_line(staged(row) + at); }

  PRIMUS_DEVICE void prepare() const {
    wait_for_previous();
    for (int row = 0; row < rows; ++row) {
      const BFloat16* from = x + static_cast<std::int64_t>(row) * in;
      BFloat16* to = staged(row);
      PRIMUS_UNROLL_BY(4)
      for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine)
        *reinterpret_cast<Bytes16*>(to + i) = load_line(from + i);
    }
    barrier();
  }
};

// RMSNorm of x + delta, the same bits as those of rms_norm/gpu.cu. Every block computes it, and the first
// writes the sum.
struct NormedRows {
  static constexpr int kLine = StagedRows::kLine;
  StagedRows of;
  const BFloat16 *delta, *weight;  // delta: or null
  BFloat16* sum;
  float eps;

  PRIMUS_DEVICE Bytes16 line(int row, int at) const { return of.line(row, at); }

  PRIMUS_DEVICE void prepare() const {
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
          // What is normed is the sum as it is stored.
          PRIMUS_UNROLL
          for (int k = 0; k < kLine; ++k) v[k] = to_float(from_float<BFloat16>(v[k] + d[k]));
          if (block() == 0) store<kLine>(sum + first + i, v);
        }
        store<kLine>(to + i, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k) mine = multiply_add(v[k], v[k], mine);
      }
      mine = warp_reduce(mine);
      if (lane() == 0) squares.of_warp[row][warp()] = mine;
    }
    barrier();
    for (int row = 0; row < of.rows; ++row) {
      float all = squares.of_warp[row][0];
      PRIMUS_UNROLL
      for (int w = 1; w < kFewRowWarps; ++w) all += squares.of_warp[row][w];
      const float scale = 1.0F / ::sqrtf(all / static_cast<float>(in) + eps);
      BFloat16* const to = of.staged(row);
      PRIMUS_UNROLL_BY(2)
      for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine) {
        float v[kLine], w[kLine];
        load<kLine>(to + i, v);  // this thread's own elements: no barrier needed
        load<kLine>(weight + i, w);
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k) v[k] = v[k] * scale * w[k];
        store<kLine>(to + i, v);
      }
    }
    barrier();
  }
};

// ---- Results ------------------------------------------------------------------------------------

// Which row of W is the n-th of a tile, and what becomes of its product with a row of x. Columns that are not
// there are the last one again, and are not stored.
template <class C>
struct PlainResults {
  static constexpr bool kPaired = false;
  C* y;
  const BFloat16* bias;  // or null
  int out;

  PRIMUS_DEVICE int count() const { return out; }
  PRIMUS_DEVICE int row_of(int i) const { return i; }
  PRIMUS_DEVICE void store_result(int row, int i, float total) const {
    C result = from_float<C>(total);
    if (bias) result = from_float<C>(to_float(result) + to_float(bias[i]));
    y[static_cast<std::int64_t>(row) * out + i] = result;
  }
};

// Rows of W come in pairs `run` rows apart: pair i has rows i / run * 2 * run + i % run and run more.
struct Pairs {
  static constexpr bool kPaired = true;
  int pairs, run;

  PRIMUS_DEVICE int count() const { return pairs; }
  PRIMUS_DEVICE int row_of(int i) const { return i + i / run * run; }
};

// Swiglu of gate and up, which are rounded first as if they had been stored.
struct GatedResults : Pairs {
  BFloat16* y;

  PRIMUS_DEVICE void store_result(int row, int i, float gate, float up) const {
    const float g = to_float(from_float<BFloat16>(gate)), u = to_float(from_float<BFloat16>(up));
    y[static_cast<std::int64_t>(row) * pairs + i] = from_float<BFloat16>(g * sigmoid(g) * u);
  }
};

// Heads of 2 * run columns, of which the first `heads` are rotated by their row's position.
struct RotatedResults : Pairs {
  BFloat16* y;
  const BFloat16* bias;  // or null
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

// ---- The product --------------------------------------------------------------------------------

template <class Rows, class Results>
struct FewRowProduct {
  static constexpr int kThreads = kFewRowThreads;
  using StartsEarly = void;
  static constexpr int kItems = Results::kPaired ? kStripeRows / 2 : kStripeRows;  // columns of the result
  static constexpr int kStep = kFewRowWarps * Stripe::kCols;                       // columns
  static constexpr int kInFlight = 8;  // steps that are read ahead
  // Of a row of the first tile, bytes that are asked into the cache while the kernel in front still runs.
  static constexpr int kEarlyBytes = 8192;

  Rows rows_of_x;
  Results results;
  const BFloat16* w;
  int rows, in, tiles, groups;  // groups of kInFlight steps

  struct Sums {
    // Of a tile, while others still add up the one before.
    float of_warp[2][kFewRowWarps][kFewRows][kStripeRows];
  };

  // The n-th row of W in a tile.
  PRIMUS_DEVICE const BFloat16* row_of(int tile, int n) const {
    const int item = tile * kItems + n % kItems, last = results.count() - 1;
    int row = results.row_of(item < last ? item : last);
    if constexpr (Results::kPaired) row += n / kItems * results.run;
    return w + static_cast<std::int64_t>(row) * in;
  }

  PRIMUS_DEVICE void operator()() const {
    const int column = warp() * Stripe::kCols + Stripe::col(), step_of_tiles = static_cast<int>(blocks());
    const int own_row = Stripe::row(0);
    const bool there = own_row < rows;
    // What is read next: of which tile and group, from where.
    int ahead_tile = static_cast<int>(block()), ahead_group = 0, ahead = column;
    const BFloat16* from;
    const auto open_tile = [&] {
      from = row_of(ahead_tile, own_row);
      ahead = column;
    };
    Bytes16 weights[kInFlight];
    const auto fetch = [&](int j, int at) { weights[j] = at < in ? load_line_once(from + at) : Bytes16{}; };

    let_next_begin();
    open_tile();
    PRIMUS_UNROLL
    for (int j = 0; j < kInFlight; ++j) fetch(j, ahead + j * kStep);
    if (thread() < kStripeRows) {
      const int bytes = in * static_cast<int>(sizeof(BFloat16));
      prefetch_run(row_of(ahead_tile, thread()), bytes < kEarlyBytes ? bytes : kEarlyBytes);
    }
    rows_of_x.prepare();

    int parity = 0;
    for (int tile = static_cast<int>(block()); tile < tiles; tile += step_of_tiles) {
      Accumulator sum;
      sum.clear();
      int at = column;
      for (int group = 0; group < groups; ++group) {
        ahead += kInFlight * kStep;
        if (++ahead_group == groups) {
          ahead_group = 0, ahead_tile += step_of_tiles;
          if (ahead_tile < tiles) {
            open_tile();
          } else {
            ahead = in;  // there is no more
          }
        }
        PRIMUS_UNROLL
        for (int j = 0; j < kInFlight; ++j) {
          const int here = at + j * kStep;
          Stripe left{};
          left.of_row[0] = there && here < in ? rows_of_x.line(own_row, here) : Bytes16{};
          const Stripe right{{weights[j]}};
          PRIMUS_UNROLL
          for (int product = 0; product < Stripe::kProducts; ++product)
            multiply<1>(sum, left.left(product), right.right(product));
          fetch(j, ahead + j * kStep);
        }
        at += kInFlight * kStep;
      }
      finish(tile, parity, sum);
      parity ^= 1;
    }
  }

  PRIMUS_DEVICE void finish(int tile, int parity, const Accumulator& mine) const {
    auto& of_warp = shared<Sums>().of_warp[parity];
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int row = Accumulator::row(i), n = Accumulator::col(i);
      if (row < kFewRows && n < kStripeRows) of_warp[warp()][row][n] = mine.at[i];
    }
    barrier();
    const auto total = [&](int row, int n) {
      float sum = 0;
      PRIMUS_UNROLL
      for (int j = 0; j < kFewRowWarps; ++j) sum += of_warp[j][row][n];
      return sum;
    };
    static_assert(kItems * kFewRows <= kThreads);
    const int n = thread() % kItems, row = thread() / kItems, item = tile * kItems + n;
    if (row >= rows || item >= results.count()) return;
    if constexpr (Results::kPaired) {
      results.store_result(row, item, total(row, n), total(row, kItems + n));
    } else {
      results.store_result(row, item, total(row, n));
    }
  }
};

// Rows and columns that the kernel takes, whatever the address of x and W is a multiple of 16: a multiple of
// 8 columns, and rows that fit shared memory twice beside all else. More rows cost it more than they do the
// kernel of gpu_skinny.cu.
inline bool takes_few_rows(const Context& context, std::int64_t rows, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kMost = 1 << 30, kElse = 8 << 10, kAlways = 40 << 10;
  return rows >= 1 && rows <= kFewRows && in >= 1 && in % 8 == 0 && in <= kMost && out <= kMost &&
         StagedRows::shared_bytes(rows, in) <= std::max(most_shared(context) / 2 - kElse, kAlways);
}

template <class Rows, class Results>
void launch_few_rows(Context& context, const Rows& x, const Results& results, std::int64_t count,
                     const BFloat16* w, std::int64_t rows, std::int64_t in) {
  using Product = FewRowProduct<Rows, Results>;
  // Three blocks of a multiprocessor: with two, reading is bound by latency.
  constexpr std::int64_t kBlocks = 3, kUnasked = 40 << 10, kAsked = (48 << 10) + 16;
  const std::int64_t tiles = blocks_for(count, Product::kItems);
  std::int64_t bytes = StagedRows::shared_bytes(rows, in);
  // With what the kernel declares, 48 KiB are passed a little earlier.
  if (bytes > kUnasked) bytes = std::max(bytes, kAsked);
  launch(context, std::min(tiles, kBlocks * multiprocessors(context)),
         Product{x, results, w, static_cast<int>(rows), static_cast<int>(in), static_cast<int>(tiles),
                 static_cast<int>(blocks_for(in, Product::kInFlight * Product::kStep))},
         static_cast<std::size_t>(bytes));
}

}  // namespace primus::turbo::PRIMUS_GPU
