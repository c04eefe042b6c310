// Products of at most 8 rows, y = x · Wᵀ, as decoding has them: bound by reading W once. The kernel is put
// together from what its rows are made of (RowsInPlace, StagedRows, NormedRows) and what becomes of a result
// (PlainResults, GatedResults, RotatedResults).
//
// Blocks stay on the machine and take one tile of rows of W after the other. Every lane copies what it will
// multiply itself into a ring in shared memory, some steps ahead, so that weights stream without a pause and
// no thread waits for another's; the first ones are on their way while the kernel in front still makes x. The
// matrix units make sums so cheap that reading is all there is to do. The warps of a block share the columns
// and add their sums up in their order: an element of a result has the same bits whatever x is made from, and
// whatever other rows and columns there are.
#pragma once

#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/mma.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kFewRows = 8;
constexpr int kFewRowThreads = 256;
constexpr int kFewRowWarps = kFewRowThreads / kWarp;
// Rows of W of which a warp reads a stripe with one load of every lane.
constexpr int kStripeRows = kWarp == 32 ? 8 : 16;

// ---- Rows ---------------------------------------------------------------------------------------

// Copied beside the weights, with every tile again.
struct RowsInPlace {
  static constexpr bool kStaged = false;
  static constexpr int kStripes = 2;  // of W, for each copy of x
  const BFloat16* x;
  int rows, in;

  static std::int64_t shared_bytes(std::int64_t, std::int64_t) { return 0; }
  PRIMUS_DEVICE void prepare() const { wait_for_previous(); }
  PRIMUS_DEVICE const BFloat16* line(int row, int at) const {
    return x + static_cast<std::int64_t>(row) * in + at;
  }
};

// Copied to shared memory first. Neighbouring rows begin in other banks.
struct StagedRows {
  static constexpr bool kStaged = true;
  static constexpr int kStripes = 1;
  static constexpr int kLine = 8, kPadding = 32;
  const BFloat16* x;
  int rows, in;

  static std::int64_t shared_bytes(std::int64_t rows, std::int64_t in) {
    return rows * (in + kPadding) * static_cast<std::int64_t>(sizeof(BFloat16));
  }
  PRIMUS_DEVICE BFloat16* staged(int row) const {
    return reinterpret_cast<BFloat16*>(dynamic_shared()) + row * (in + kPadding);
  }
  PRIMUS_DEVICE const BFloat16* line(int row, int at) const { return staged(row) + at; }

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
  static constexpr bool kStaged = true;
  static constexpr int kStripes = 1;
  static constexpr int kLine = StagedRows::kLine;
  StagedRows of;
  const BFloat16 *delta, *weight;  // delta: or null
  BFloat16* sum;
  float eps;

  static std::int64_t shared_bytes(std::int64_t rows, std::int64_t in) {
    return StagedRows::shared_bytes(rows, in);
  }
  PRIMUS_DEVICE const BFloat16* line(int row, int at) const { return of.line(row, at); }

  PRIMUS_DEVICE void prepare() const {
    const int in = of.in;
    for (int i = thread() * kLine; i < in; i += kFewRowThreads * kLine) prefetch(weight + i);
    wait_for_previous();
    if (of.rows == 1) {
      struct Squares {
        float of_warp[kFewRowWarps];
      };
      Squares& squares = shared<Squares>();
      const float mine = warp_reduce(take_up(0, thread()));
      if (lane() == 0) squares.of_warp[warp()] = mine;
      barrier();
      float all = squares.of_warp[0];
      PRIMUS_UNROLL
      for (int w = 1; w < kFewRowWarps; ++w) all += squares.of_warp[w];
      scale(0, all, thread(), kFewRowThreads);
    } else {
      // A warp for each, adding up in the same order.
      for (int row = warp(); row < of.rows; row += kFewRowWarps) {
        float parts[kFewRowWarps], all = 0;
        PRIMUS_UNROLL
        for (int w = 0; w < kFewRowWarps; ++w) parts[w] = take_up(row, w * kWarp + lane());
        PRIMUS_UNROLL
        for (int w = 0; w < kFewRowWarps; ++w) {
          const float part = warp_reduce(parts[w]);
          all = w == 0 ? part : all + part;
        }
        scale(row, all, lane(), kWarp);
      }
    }
    barrier();
  }

 private:
  // The part of a block's thread of this number: writes the sum to shared memory, and adds up its squares.
  PRIMUS_DEVICE float take_up(int row, int part) const {
    const std::int64_t first = static_cast<std::int64_t>(row) * of.in;
    BFloat16* const to = of.staged(row);
    float squares = 0;
    PRIMUS_UNROLL_BY(2)
    for (int i = part * kLine; i < of.in; i += kFewRowThreads * kLine) {
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
      for (int k = 0; k < kLine; ++k) squares = multiply_add(v[k], v[k], squares);
    }
    return squares;
  }

  // Of the row in shared memory, the elements that this thread wrote itself: no barrier needed.
  PRIMUS_DEVICE void scale(int row, float squares, int first, int step) const {
    const float by = 1.0F / ::sqrtf(squares / static_cast<float>(of.in) + eps);
    BFloat16* const to = of.staged(row);
    PRIMUS_UNROLL_BY(2)
    for (int i = first * kLine; i < of.in; i += step * kLine) {
      float v[kLine], w[kLine];
      load<kLine>(to + i, v);
      load<kLine>(weight + i, w);
      PRIMUS_UNROLL
      for (int k = 0; k < kLine; ++k) v[k] = v[k] * by * w[k];
      store<kLine>(to + i, v);
    }
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

template <class Rows, class Results, int kSteps>
struct FewRowProduct {
  static constexpr int kThreads = kFewRowThreads;
  using StartsEarly = void;
  static constexpr int kStripes = Rows::kStripes;
  static constexpr int kTileRows = kStripes * kStripeRows;                     // of W
  static constexpr int kItems = Results::kPaired ? kTileRows / 2 : kTileRows;  // columns of the result
  static constexpr int kStep = kFewRowWarps * Stripe::kCols;                   // columns
  static constexpr int kInputs = Rows::kStaged ? 0 : 1;

  Rows rows_of_x;
  Results results;
  const BFloat16* w;
  int rows, in, tiles, steps;
  int ring_at;  // bytes of shared memory before the ring

  // What the lanes have of a step: of their rows of W, and of x.
  struct Step {
    Bytes16 of_lane[kStripes + kInputs][kThreads];
  };
  struct Sums {
    float of_warp[2][kFewRowWarps][kFewRows]
                 [kTileRows];  // of a tile, while others still add up the one before
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
    auto* const ring = reinterpret_cast<Step*>(dynamic_shared() + ring_at);
    // What is copied next: of which tile and step, from where.
    int ahead_tile = static_cast<int>(block()), ahead_step = 0, ahead = column;
    const BFloat16* from[kStripes];
    const auto open_tile = [&] {
      PRIMUS_UNROLL
      for (int k = 0; k < kStripes; ++k) from[k] = row_of(ahead_tile, k * kStripeRows + own_row);
      ahead = column;
    };
    const auto copy_weights = [&](Step& to) {
      PRIMUS_UNROLL
      for (int k = 0; k < kStripes; ++k)
        copy_async(&to.of_lane[k][thread()], ahead < in ? from[k] + ahead : w, ahead < in);
    };
    const auto copy_input = [&](Step& to, int at) {
      if constexpr (!Rows::kStaged) {
        const bool inside = there && at < in;
        copy_async(&to.of_lane[kStripes][thread()], rows_of_x.line(inside ? own_row : 0, inside ? at : 0),
                   inside);
      }
    };
    const auto advance = [&] {
      ahead += kStep;
      if (++ahead_step < steps) return;
      ahead_step = 0, ahead_tile += step_of_tiles;
      if (ahead_tile < tiles) {
        open_tile();
      } else {
        ahead = in;  // there is no more
      }
    };

    let_next_begin();
    open_tile();
    PRIMUS_UNROLL
    for (int j = 0; j < kSteps; ++j) {
      copy_weights(ring[j]);
      if constexpr (Rows::kStaged) end_group_of_copies();
      advance();
    }
    rows_of_x.prepare();
    if constexpr (!Rows::kStaged) {
      PRIMUS_UNROLL
      for (int j = 0; j < kSteps; ++j) {
        copy_input(ring[j], column + j % steps * kStep);
        end_group_of_copies();
      }
    }

    int parity = 0, turn = 0;
    for (int tile = static_cast<int>(block()); tile < tiles; tile += step_of_tiles) {
      Accumulator sums[kStripes];
      PRIMUS_UNROLL
      for (int k = 0; k < kStripes; ++k) sums[k].clear();
      for (int at = column, step = 0; step < steps; ++step, at += kStep) {
        wait_for_copies<kSteps - 1>();
        Step& now = ring[turn];
        Stripe left{};
        if constexpr (Rows::kStaged) {
          if (there && at < in) left.of_row[0] = load_line(rows_of_x.line(own_row, at));
        } else {
          left.of_row[0] = now.of_lane[kStripes][thread()];
        }
        PRIMUS_UNROLL
        for (int k = 0; k < kStripes; ++k) {
          const Stripe right{{now.of_lane[k][thread()]}};
          PRIMUS_UNROLL
          for (int product = 0; product < Stripe::kProducts; ++product)
            multiply<1>(sums[k], left.left(product), right.right(product));
        }
        copy_weights(now);
        copy_input(now, column + ahead_step * kStep);
        end_group_of_copies();
        advance();
        turn = turn + 1 < kSteps ? turn + 1 : 0;
      }
      finish(tile, parity, sums);
      parity ^= 1;
    }
    wait_for_copies<0>();
  }

  PRIMUS_DEVICE void finish(int tile, int parity, const Accumulator (&sums)[kStripes]) const {
    auto& of_warp = shared<Sums>().of_warp[parity];
    PRIMUS_UNROLL
    for (int k = 0; k < kStripes; ++k) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int row = Accumulator::row(i), n = Accumulator::col(i);
        if (row < kFewRows && n < kStripeRows) of_warp[warp()][row][k * kStripeRows + n] = sums[k].at[i];
      }
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

// Rows and columns that the kernel takes: a multiple of 8 columns, whatever the address of x and W is a
// multiple of 16.
inline bool takes_few_rows(std::int64_t rows, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kMost = 1 << 30;
  return rows >= 1 && rows <= kFewRows && in >= 1 && in % 8 == 0 && in <= kMost && out <= kMost;
}

// Steps of a ring, and what a block has of shared memory besides x and its ring: a bound for its sums and
// for what the machine keeps.
inline constexpr int kFewSteps = 5, kManySteps = 10, kStepsInPlace = 4;
inline constexpr std::int64_t kStepBytes = kFewRowThreads * sizeof(Bytes16), kBesides = 6 << 10;

// Shared memory of a multiprocessor. Every GPU has so much; the emulator names less, so that others test it.
inline std::int64_t shared_of_all(const Context& context) {
  constexpr std::int64_t kAlways = 64 << 10;
  return std::max(most_shared(context), kAlways) + (1 << 10);
}

// Whether there is room for x and a block's other needs, twice if the multiprocessor has more than others.
inline bool fits_staged(const Context& context, std::int64_t rows, std::int64_t in) {
  constexpr std::int64_t kAlways = 34 << 10;
  return StagedRows::shared_bytes(rows, in) <=
         std::max(shared_of_all(context) / 2 - kFewSteps * kStepBytes - kBesides, kAlways);
}

template <int kSteps, class Rows, class Results>
void launch_few_rows(Context& context, const Rows& x, const Results& results, std::int64_t count,
                     const BFloat16* w, std::int64_t rows, std::int64_t in, std::int64_t blocks) {
  using Product = FewRowProduct<Rows, Results, kSteps>;
  const std::int64_t tiles = blocks_for(count, Product::kItems), ring_at = Rows::shared_bytes(rows, in);
  launch(context, std::min(tiles, blocks * multiprocessors(context)),
         Product{x, results, w, static_cast<int>(rows), static_cast<int>(in), static_cast<int>(tiles),
                 static_cast<int>(blocks_for(in, Product::kStep)), static_cast<int>(ring_at)},
         static_cast<std::size_t>(ring_at) + kSteps * sizeof(typename Product::Step));
}

// Four blocks of a multiprocessor hide each other's beginnings and ends best; where x leaves room for fewer,
// they have longer rings.
template <class Rows, class Results>
void launch_few_rows(Context& context, const Rows& x, const Results& results, std::int64_t count,
                     const BFloat16* w, std::int64_t rows, std::int64_t in) {
  if constexpr (Rows::kStaged) {
    const std::int64_t room = shared_of_all(context), each = Rows::shared_bytes(rows, in) + kBesides;
    const auto fit = [&](std::int64_t blocks, std::int64_t steps) {
      return blocks * (each + steps * kStepBytes) <= room;
    };
    const auto run = [&](auto steps, std::int64_t blocks) {
      launch_few_rows<steps>(context, x, results, count, w, rows, in, blocks);
    };
    using Few = std::integral_constant<int, kFewSteps>;
    using Many = std::integral_constant<int, kManySteps>;
    if (fit(4, kFewSteps)) return run(Few{}, 4);
    if (fit(2, kManySteps)) return run(Many{}, 2);
    if (fit(2, kFewSteps)) return run(Few{}, 2);
    if (fit(1, kManySteps)) return run(Many{}, 1);
    run(Few{}, 1);
  } else {
    launch_few_rows<kStepsInPlace>(context, x, results, count, w, rows, in, 2);
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
