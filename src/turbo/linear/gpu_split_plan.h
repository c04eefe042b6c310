// The division of products of bf16 with fp32 (gpu_split.h) into blocks, and of fp32 numbers into bf16 parts.
#pragma once

#include <algorithm>
#include <bit>

#include "turbo/gpu/values.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Divides a product into blocks. The division depends only on the product's sizes. Each block computes a tile
// of the result. If there are too few tiles to fill a GPU, the sum over k is also divided into ranges
// (pieces). `ordered`: the division of sums must not depend on the number of rows.
struct SplitPlan {
  static constexpr std::int64_t kRows = 64, kCols = 128, kDepth = 32;
  // The matrix units truncate when they add. The matrix units therefore accumulate at most kStepsTogether
  // steps of kDepth. Then the sums are added, with rounding, to fp32 sums.
  static constexpr int kStepsTogether = 4;
  static constexpr std::int64_t kOrderedPieces = 8;

  SplitPlan(const Gemm& call, bool ordered)
      : m(call.c.rows()),
        n(call.c.cols()),
        k(call.role == GemmRole::kWeightGradient ? call.a.rows() : call.a.cols()),
        tiles(blocks_for(m, kRows) * blocks_for(n, kCols)) {
    // More pieces would make the workspace of many rows too large.
    constexpr std::int64_t kBlocks = 256, kMinSteps = 4;
    const std::int64_t steps = blocks_for(k, kDepth);
    const std::int64_t wanted =
        std::clamp<std::int64_t>(ordered ? kOrderedPieces : kBlocks / std::max<std::int64_t>(tiles, 1), 1,
                                 std::max<std::int64_t>(steps / kMinSteps, 1));
    steps_of_piece = blocks_for(steps, wanted);
    pieces = std::max<std::int64_t>(blocks_for(steps, steps_of_piece), 1);
  }

  std::int64_t m, n, k, tiles, steps_of_piece, pieces;
};

// Splits an fp32 number into bf16 parts. Three parts add up to exactly this number; two parts have a relative
// error below 2^-16.
template <int kParts>
PRIMUS_DEVICE void split(float x, BFloat16 (&parts)[kParts]) {
  if constexpr (kParts == 2) {
    parts[0] = from_float<BFloat16>(x);
    parts[1] = from_float<BFloat16>(x - to_float(parts[0]));
  } else {
    PRIMUS_UNROLL
    for (int i = 0; i < kParts; ++i) {
      // Truncates to the eight leading binary digits, so that the remainder is exact.
      parts[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
      x -= to_float(parts[i]);
    }
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
