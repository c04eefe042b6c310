// Output of warpgroup sums (warpgroup_products.h) from registers: additions in memory, waits for the copy
// engine, and a shuffle. Before the shuffle, a lane has two adjacent elements; after the shuffle, a lane has
// more adjacent elements.
#pragma once

#include "turbo/gpu/values.h"
#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// to[i] += values[i], by a reduction in memory that does not return the old values. No other thread may add
// to the same elements; otherwise results would vary between runs. The address is a multiple of 16.
PRIMUS_DEVICE void add_four([[maybe_unused]] float* to, [[maybe_unused]] const float (&values)[4]) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int i = 0; i < 4; ++i) to[i] += values[i];
#elif PRIMUS_WARPGROUPS
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#endif
}

// Writes a lane's elements of row `slot` (0 or 1) to the line `to`, or adds the elements to the line, in
// pairs.
template <class Sums, class To>
PRIMUS_DEVICE void write_pairs(const Sums& sums, int slot, To* to, bool accumulate) {
  PRIMUS_UNROLL
  for (int i = 2 * slot; i < Sums::kCount; i += 4) {
    float pair[2] = {sums.at[i], sums.at[i + 1]};
    if (accumulate) {
      float there[2];
      load(to + Sums::col(i), there);
      pair[0] += there[0], pair[1] += there[1];
    }
    store(to + Sums::col(i), pair);
  }
}

// Ends a group of this thread's copies from shared memory by the TMA (copy_box_back()).
PRIMUS_DEVICE void end_group_of_boxes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Waits until the TMA has read all groups of end_group_of_boxes() except the last kLater groups. The shared
// memory of the read groups may then be overwritten.
template <int kLater = 0>
PRIMUS_DEVICE void wait_for_boxes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLater) : "memory");
#endif
}

// Transposes 4 x 4 words among groups of four lanes: word j of lane i of a group becomes word i of lane j.
PRIMUS_DEVICE void transpose_among_four(std::uint32_t (&words)[4]) {
  const int place = lane() % 4;
  PRIMUS_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const bool upper = (place & mask) != 0;
    PRIMUS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int low = mask == 1 ? 2 * i : i, high = low + mask;
      const std::uint32_t got = from_lane_xor(upper ? words[low] : words[high], mask);
      if (upper) {
        words[low] = got;
      } else {
        words[high] = got;
      }
    }
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
