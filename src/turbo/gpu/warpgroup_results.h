// How sums of warpgroups (warpgroup_products.h) leave the registers: additions in memory, waits for boxes
// that the copy engine takes, and an exchange among lanes that turns pairs of neighbours into longer lines.
#pragma once

#include "turbo/gpu/values.h"
#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// to[i] += values[i], by the memory itself: nobody waits for what was there. For elements that no other
// thread adds to, or the result would change from run to run. The address is one of 16 bytes.
PRIMUS_DEVICE void add_four([[maybe_unused]] float* to, [[maybe_unused]] const float (&values)[4]) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int i = 0; i < 4; ++i) to[i] += values[i];
#elif PRIMUS_WARPGROUPS
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#endif
}

// Ends a group of this thread's boxes that the copy engine takes from shared memory (copy_box_back()).
PRIMUS_DEVICE void end_group_of_boxes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Waits until all but the last kLater of these groups have been read, and may be overwritten.
template <int kLater = 0>
PRIMUS_DEVICE void wait_for_boxes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLater) : "memory");
#endif
}

// Word j of the lane that is i-th in its group of four becomes word i of the j-th.
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
