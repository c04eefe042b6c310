// Products of a bf16 row with eight rows of W by one warp. Each sum is one chain over k of the matrix units'
// additions, in steps of 16: the order of the tiles of large products (warpgroup_products.h, mma.h). The
// emulator adds in the same order. On Hopper GPUs, `mma.sync` and `wgmma` round equally; the tests of
// batch-invariant products compare their bits on the GPU (docs/numerics.md).
#pragma once

#include <bit>

#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

// A lane's share of row lane / 4 of eight rows of W. A line is 32 columns of all rows; each of the four lanes
// of a row reads 8 consecutive columns of it, so that reads are long. kInFlight lines are in flight.
template <int kInFlight>
struct ChainWeights {
  static constexpr int kRows = 8, kLines = kInFlight, kLineColumns = 32, kColumns = kLines * kLineColumns;
  Bytes16 line[kLines];

  // The row of W whose elements this lane reads.
  PRIMUS_DEVICE static int row() { return lane() / 4 % kRows; }
  // Requests line j from column `at` of this lane's row on. Columns from `in` on are zero.
  PRIMUS_DEVICE void fetch(int j, const BFloat16* from, int at, int in) {
    const int column = at + lane() % 4 * 8;
    line[j] = column < in ? load_line_once(from + column) : Bytes16{};
  }
  // Requests the first lines.
  PRIMUS_DEVICE void fetch_all(const BFloat16* from, int in) {
    PRIMUS_UNROLL
    for (int j = 0; j < kLines; ++j) fetch(j, from, j * kLineColumns, in);
  }
};

// A row of x in shared memory, aligned to 16 bytes.
struct ChainInput {
  const BFloat16* row;
  int in;

  // Returns the two elements of this lane in the eight columns from `at` on. Unless kInside, columns after
  // the end are zero.
  template <bool kInside>
  PRIMUS_DEVICE std::uint32_t pair(int at) const {
    return kInside || at < in ? *reinterpret_cast<const std::uint32_t*>(row + at + lane() % 4 * 2) : 0U;
  }
};

// Four adjacent lanes exchange words: word i of lane j becomes word j of lane i.
PRIMUS_DEVICE void exchange_words(Bytes16& words) {
  PRIMUS_UNROLL
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool upper = (lane() & mask) != 0;
    PRIMUS_UNROLL
    for (int i = 0; i < 2; ++i) {
      std::uint32_t& low = words.word[mask == 1 ? 2 * i : i];
      std::uint32_t& high = words.word[mask == 1 ? 2 * i + 1 : i + 2];
      const std::uint32_t got = from_lane_xor(upper ? low : high, mask);
      low = upper ? got : low;
      high = upper ? high : got;
    }
  }
}

// The sums of a warp. A lane has the sums with rows 2 * (lane % 4) and 2 * (lane % 4) + 1 of W.
class ChainSums {
 public:
  PRIMUS_DEVICE ChainSums() { sums_.clear(); }
  PRIMUS_DEVICE float first() const { return sums_.at[0]; }
  PRIMUS_DEVICE float second() const { return sums_.at[1]; }

  // Adds the products of the 32 columns from `at` on. kInside: all of them exist.
  template <bool kInside>
  PRIMUS_DEVICE void add(Bytes16 weights, const ChainInput& x, int at) {
    exchange_words(weights);
    PRIMUS_UNROLL
    for (int step = 0; step < 2; ++step) {
      const int column = at + step * kTile;
      Words left{}, right{};
      left.at[0] = x.pair<kInside>(column);
      left.at[kHigh] = x.pair<kInside>(column + 8);
      right.at[0] = weights.word[2 * step];
      right.at[1] = weights.word[2 * step + 1];
      multiply<1>(sums_, std::bit_cast<Operand<BFloat16>>(left), std::bit_cast<Operand<BFloat16>>(right));
    }
  }

 private:
  // Two elements each of an operand with warps of 32 (mma_operands.h). All lanes pass the same row of x as
  // the first eight rows of the left operand; the other rows are zero. Kernels with warps of 64 are compiled,
  // but not launched.
  static constexpr int kWords = kPerLane / 2, kHigh = kWarp == 32 ? 2 : 1;
  struct Words {
    std::uint32_t at[kWords];
  };
  Accumulator sums_;
};

// Adds the products of the lines in flight, from column `begin` on, and requests the lines that follow them.
// The loop has no branch between two lines, so the exchanges and reads of later lines overlap with the chain.
// Lines after the end of the row are zero, which changes no sum.
template <bool kInside, int kInFlight>
PRIMUS_DEVICE void add_lines(ChainSums& sums, ChainWeights<kInFlight>& weights, const BFloat16* from,
                             const ChainInput& x, int begin) {
  using Weights = ChainWeights<kInFlight>;
  PRIMUS_UNROLL
  for (int j = 0; j < Weights::kLines; ++j) {
    const int at = begin + j * Weights::kLineColumns;
    const Bytes16 line = weights.line[j];
    weights.fetch(j, from, at + Weights::kColumns, x.in);
    sums.add<kInside>(line, x, at);
  }
}

// Adds the products of complete rows, whose first lines are already requested.
template <int kInFlight>
PRIMUS_DEVICE void add_chain(ChainSums& sums, ChainWeights<kInFlight>& weights, const BFloat16* from,
                             const ChainInput& x) {
  constexpr int kColumns = ChainWeights<kInFlight>::kColumns;
  int begin = 0;
  for (; begin + kColumns <= x.in; begin += kColumns) add_lines<true>(sums, weights, from, x, begin);
  if (begin < x.in) add_lines<false>(sums, weights, from, x, begin);
}

}  // namespace primus::turbo::PRIMUS_GPU
