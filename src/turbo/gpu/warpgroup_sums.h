// The sums of warpgroup products (warpgroup_products.h) in registers, and the ordering of products relative
// to other work.
#pragma once

#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// 64 x kCols sums of a warpgroup. A warp has 16 rows of them, and its lanes hold pairs of adjacent elements
// of a row.
template <int kColumns>
struct WarpgroupSums {
  static constexpr int kCols = kColumns, kCount = kCols / 2, kRows = 64;
  float at[kCount];

  PRIMUS_DEVICE void clear() {
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) at[i] = 0;
  }
  PRIMUS_DEVICE static int row(int i) { return warp() % 4 * 16 + lane() / 4 + i / 2 % 2 * 8; }
  PRIMUS_DEVICE static int col(int i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }
};
using WideSums = WarpgroupSums<256>;

// A left operand of 64 rows and a depth of 16 in the registers of a warpgroup. Its layout is that of sums,
// rounded to bf16.
struct LeftInRegisters {
  std::uint32_t pairs[4];
};

// Rounds columns [16 * d, 16 * d + 16) of `sums`.
template <int kCols>
PRIMUS_DEVICE LeftInRegisters to_left(const WarpgroupSums<kCols>& sums, int d) {
  LeftInRegisters result;
  PRIMUS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Pack<BFloat16, 2> pair{from_float<BFloat16>(sums.at[8 * d + 2 * i]),
                                 from_float<BFloat16>(sums.at[8 * d + 2 * i + 1])};
    result.pairs[i] = std::bit_cast<std::uint32_t>(pair);
  }
  return result;
}

// Forces the computation of these registers to be complete at this point. Products that are not complete
// still access registers, which the compiler does not take into account. It might otherwise move the
// computation past later statements.
template <int kCols>
PRIMUS_DEVICE void settle([[maybe_unused]] WarpgroupSums<kCols>& sums) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  PRIMUS_UNROLL
  for (int i = 0; i < WarpgroupSums<kCols>::kCount; ++i) asm volatile("" : "+f"(sums.at[i])::"memory");
#endif
}
PRIMUS_DEVICE void settle([[maybe_unused]] LeftInRegisters& left) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  PRIMUS_UNROLL
  for (std::uint32_t& pair : left.pairs) asm volatile("" : "+r"(pair)::"memory");
#endif
}

// Makes the assembler place later waits for products after the arithmetic that yields `value`, which is not
// negative. Otherwise it would place the waits before this arithmetic, which would then not overlap with
// products. It does not move waits across a store, so this function stores to `unused`, in shared memory,
// under a condition that is never true.
PRIMUS_DEVICE void compute_before_waits([[maybe_unused]] float value, [[maybe_unused]] void* unused) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.lt.f32 never, %0, 0f00000000;\n"
      "@never st.volatile.shared.f32 [%1], %0;\n"
      "}" ::"f"(value),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(unused)))
      : "memory");
#endif
}

// Call this before the first product of a group: products then see earlier writes to the registers that they
// use.
PRIMUS_DEVICE void begin_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
PRIMUS_DEVICE void end_group_of_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most kLater groups of products are not complete. Operands of completed groups may then be
// overwritten, and their sums may be read after settle().
template <int kLater>
PRIMUS_DEVICE void wait_for_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
#endif
}
// Calls wait_for_products(), then settle(sums).
template <int kLater = 0, int kCols>
PRIMUS_DEVICE void wait_for_sums(WarpgroupSums<kCols>& sums) {
  wait_for_products<kLater>();
  settle(sums);
}

}  // namespace primus::turbo::PRIMUS_GPU
