// Sums over long vectors with a result that no thread count changes.
#pragma once

#include <algorithm>
#include <array>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// Cuts [0, n) into at most 256 chunks by n alone, calls chunk_sum(begin, end) for each of them on the pool,
// and adds the results in order.
template <class Partial, class ChunkSum>
Partial ordered_sum(const CpuContext& context, std::int64_t n, ChunkSum chunk_sum) {
  constexpr std::int64_t kChunks = 256, kSmallest = 16384;
  const std::int64_t grain = std::max((n + kChunks - 1) / kChunks, kSmallest);
  std::array<Partial, kChunks> partials{};
  context.pool().parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
    partials[static_cast<std::size_t>(begin / grain)] = chunk_sum(begin, end);
  });
  Partial sum{};
  for (const Partial partial : partials) sum += partial;
  return sum;
}

// Sum of term(begin) ... term(end - 1), doubles, in many lanes.
template <class Term>
PRIMUS_INLINE double sum_doubles(std::int64_t begin, std::int64_t end, Term term) {
  constexpr int kLanes = 32;
  double lanes[kLanes] = {};
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < end; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
