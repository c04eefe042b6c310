// The sums of warpgroup products (warpgroup_products.h) in registers, and the ordering of products relative
// to other work.
#pragma once

#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// 64 x kCols sums of a warpgroup. A warp has 16 rows of the sums, and each lane holds pairs of adjacent
// elements of a row.
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

// A left operand of 64 rows and a depth of 16 in the registers of a warpgroup. The layout is that of sums,
// and the elements are bf16.
struct LeftInRegisters {
  std::uint32_t pairs[4];
};

// Returns the columns [16 * d, 16 * d + 16) of `sums`, rounded to bf16, as a left operand.
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
// still access these registers, but the compiler does not know this. Without this function, the compiler
// might move the computation past later statements.
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

// Makes the assembler place later waits for products after the arithmetic that yields `value`. Otherwise the
// assembler would place the waits before this arithmetic, and the arithmetic would not overlap with products.
// The assembler does not move waits across a store. Therefore this function has a store to `unused` in shared
// memory, with a condition that is never true: `value` is not negative.
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

// Call this function before the first product of a group. Products of the group then see earlier writes to
// their registers.
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
