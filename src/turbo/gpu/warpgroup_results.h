// How sums of warpgroups (warpgroup_products.h) leave the registers: additions in memory, and exchanges among
// lanes that turn pairs of neighbours into longer lines.
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

// Lines of shared memory that the copy engine adds to lines in memory, or writes there. By one thread, after
// show_writes() and a barrier; addresses and bytes are multiples of 16.
template <bool kAdd>
PRIMUS_DEVICE void copy_line([[maybe_unused]] float* to, [[maybe_unused]] const float* line,
                             [[maybe_unused]] int count) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int i = 0; i < count; ++i) to[i] = (kAdd ? to[i] : 0.0F) + line[i];
#elif PRIMUS_WARPGROUPS
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(line));
  if constexpr (kAdd) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(count * 4)
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
        "r"(from), "r"(count * 4)
        : "memory");
  }
#endif
}
PRIMUS_DEVICE void end_group_of_lines() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Waits until all of this thread's lines have been read, and may be overwritten.
PRIMUS_DEVICE void wait_for_lines() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Brings the line of 128 bytes at this address of global memory to the L2 cache. Nobody waits for it.
PRIMUS_DEVICE void bring_to_l2([[maybe_unused]] const void* line) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(line)));
#endif
}

// Of two pairs in each of two neighbouring lanes, the even lane gets both first ones, the odd lane both
// second ones, the even lane's before the odd one's.
PRIMUS_DEVICE void join_pairs(float (&pairs)[4]) {
  const bool odd = lane() % 2 != 0;
  PRIMUS_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float got = from_lane_xor(odd ? pairs[i] : pairs[2 + i], 1);
    if (odd) {
      pairs[i] = got;
    } else {
      pairs[2 + i] = got;
    }
  }
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
