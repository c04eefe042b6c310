// Exclusive prefix sums over the threads of a block.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Gives consecutive numbers to the items of the threads of a block, in the order of threads. Each call
// numbers some items of every thread. The object must be in shared memory.
template <int kThreads>
struct Numbering {
  static constexpr int kWarps = kThreads / kWarp;
  std::int32_t ends_of_warps[kWarps];

  // Numbers `mine` items of this thread and returns the number of the first. Numbering starts at `next`,
  // which increases by the number of items of all threads. All threads of the block must call this function.
  PRIMUS_DEVICE std::int32_t operator()(std::int32_t mine, std::int32_t& next) {
    // Computes the inclusive prefix sum within the warp, then adds the sums of the preceding warps.
    std::int32_t upto = mine;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::int32_t before = from_lane_before(upto, distance);
      if (lane() >= distance) upto += before;
    }
    if (lane() == kWarp - 1) ends_of_warps[warp()] = upto;
    barrier();
    std::int32_t number = next + upto - mine;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp()) number += ends_of_warps[w];
      next += ends_of_warps[w];
    }
    barrier();
    return number;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
