// Products of a few bf16 rows with an fp32 matrix on batch-invariant devices, as of a router in decoding. The
// order of additions is that of the tiles of many rows (SplitTiles in gpu_split.cu).
#pragma once

#include "turbo/gpu/mma.h"
#include "turbo/linear/gpu_split_plan.h"

namespace primus::turbo::PRIMUS_GPU {

// A block computes kCols columns of all rows. Each warp computes one piece of the sums; the block adds the
// pieces in order. Only for warps of 32.
struct OrderedSplitRows {
  using StartsEarly = void;
  static constexpr int kRows = 8, kCols = 8, kParts = 3;
  static constexpr int kWarps = static_cast<int>(SplitPlan::kOrderedPieces), kThreads = kWarps * kWarp;
  static constexpr int kSteps = 8;  // steps of 16 columns whose weights are read concurrently

  const BFloat16* x;
  const float* w;
  float* y;
  SplitPlan plan;

  struct Memory {
    float of_piece[kWarps][kRows][kCols];
  };
  // A lane's elements of a step: columns 2 * (lane % 4) + {0, 1, 8, 9} of a row of W.
  struct Weights {
    Pack<float, 2> low, high;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& memory = shared<Memory>();
    const std::int64_t first = block() * kCols, length = plan.steps_of_piece * SplitPlan::kDepth;
    const std::int64_t begin = warp() * length, end = smaller(begin + length, plan.k);
    const std::int64_t row = lane() / 4 % kRows, column = lane() % 4 * 2;
    const float* const from = w + smaller(first + row, plan.n - 1) * plan.k + column;
    const BFloat16* const input = x + smaller(row, plan.m - 1) * plan.k + column;
    Weights weights[kSteps];
    const auto fetch = [&](int j, std::int64_t at) {
      weights[j] = {};
      if (at < end) weights[j].low = *reinterpret_cast<const Pack<float, 2>*>(from + at);
      if (at + 8 < end) weights[j].high = *reinterpret_cast<const Pack<float, 2>*>(from + at + 8);
    };
    const auto pair = [&](std::int64_t at) {
      return at < end ? *reinterpret_cast<const std::uint32_t*>(input + at) : 0U;
    };
    let_next_begin();
    PRIMUS_UNROLL
    for (int j = 0; j < kSteps; ++j) fetch(j, begin + j * kTile);
    wait_for_previous();
    float total[2] = {};
    static_assert(kSteps * kTile == SplitPlan::kStepsTogether * SplitPlan::kDepth);
    for (std::int64_t group = begin; group < end; group += kSteps * kTile) {
      Accumulator sums;
      sums.clear();
      PRIMUS_UNROLL
      for (int j = 0; j < kSteps; ++j) {
        const std::int64_t at = group + j * kTile;
        add_step(sums, pair(at), pair(at + 8), weights[j]);
        fetch(j, at + kSteps * kTile);
      }
      PRIMUS_UNROLL
      for (int i = 0; i < 2; ++i) total[i] += sums.at[i];
    }
    PRIMUS_UNROLL
    for (int i = 0; i < 2; ++i) memory.of_piece[warp()][row][column + i] = total[i];
    barrier();
    const int of_row = thread() / kCols, of_column = thread() % kCols;
    if (of_row >= plan.m || first + of_column >= plan.n) return;
    float sum = 0;
    for (int piece = 0; piece < plan.pieces; ++piece) sum += memory.of_piece[piece][of_row][of_column];
    y[of_row * plan.n + first + of_column] = sum;
  }

 private:
  // Adds three products per weight, one for each part of the weight, in the order of SplitTiles.
  PRIMUS_DEVICE static void add_step(Accumulator& sums, std::uint32_t low, std::uint32_t high,
                                     const Weights& weights) {
    constexpr int kWords = kPerLane / 2, kHigh = kWarp == 32 ? 2 : 1;
    struct Words {
      std::uint32_t at[kWords];
    };
    Words left{}, right[kParts] = {};
    left.at[0] = low;
    left.at[kHigh] = high;
    PRIMUS_UNROLL
    for (int i = 0; i < 2; ++i) {
      BFloat16 parts[2][kParts];
      PRIMUS_UNROLL
      for (int j = 0; j < 2; ++j) split((i == 0 ? weights.low : weights.high).at[j], parts[j]);
      PRIMUS_UNROLL
      for (int part = 0; part < kParts; ++part) {
        right[part].at[i] = parts[0][part].bits | static_cast<std::uint32_t>(parts[1][part].bits) << 16;
      }
    }
    PRIMUS_UNROLL
    for (int part = 0; part < kParts; ++part) {
      multiply<1>(sums, std::bit_cast<Operand<BFloat16>>(left),
                  std::bit_cast<Operand<BFloat16>>(right[part]));
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
