// Warpgroup products (wgmma) of 64 rows of a left operand and up to 256 columns of a right operand. The left
// operand is in panels (warpgroup.h) or in registers, the right operand is in panels, and the sums are in
// registers. The emulator reads the same panels.
#pragma once

#include "turbo/gpu/warpgroup_sums.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns the address of depth 16 · d of an operand. The first row of the operand is the first row of
// `panel`.
template <bool kByDepth>
PRIMUS_DEVICE const BFloat16* at_depth(const BFloat16* panel, int d) {
  return panel + (kByDepth ? 16 * d * kPanelLine : 16 * d);
}

#if !defined(PRIMUS_GPU_VENDOR)

// Returns element (row, k) of an operand that begins at the address from at_depth().
template <bool kByDepth>
float operand_element(const BFloat16* from, int row, int k) {
  const int line = kByDepth ? row / kPanelLine * kPanelLine + k : row;
  const int in_line = kByDepth ? row % kPanelLine : k;
  std::uintptr_t address = reinterpret_cast<std::uintptr_t>(from + line * kPanelLine + in_line);
  address ^= address / 128 % 8 * 16;
  return to_float(*reinterpret_cast<const BFloat16*>(address));
}

// `rows` are the rows of the left operand for which this lane has sums.
template <bool kRightByDepth, int kCols>
void multiply_rows(WarpgroupSums<kCols>& sums, const float (&rows)[2][16], const BFloat16* right, bool add) {
  using Sums = WarpgroupSums<kCols>;
  for (int i = 0; i < Sums::kCount; i += 4) {
    for (int j = 0; j < 2; ++j) {
      float col[16];
      for (int k = 0; k < 16; ++k) col[k] = operand_element<kRightByDepth>(right, Sums::col(i + j), k);
      for (int half = 0; half < 2; ++half) {
        float& sum = sums.at[i + 2 * half + j];
        if (!add) sum = 0;
        for (int k = 0; k < 16; ++k) sum += rows[half][k] * col[k];
      }
    }
  }
}

// sums (+)= A[64, 16] · B[kCols, 16]ᵀ, computed by a complete warpgroup. Operands begin at addresses from
// at_depth().
template <bool kLeftByDepth, bool kRightByDepth, int kCols>
void multiply(WarpgroupSums<kCols>& sums, const BFloat16* left, const BFloat16* right, bool add) {
  float rows[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      rows[half][k] = operand_element<kLeftByDepth>(left, WarpgroupSums<kCols>::row(2 * half), k);
    }
  }
  multiply_rows<kRightByDepth>(sums, rows, right, add);
}

// sums += A · Bᵀ with A in registers.
template <bool kRightByDepth, int kCols>
void multiply(WarpgroupSums<kCols>& sums, const LeftInRegisters& left, const BFloat16* right) {
  float rows[2][16];
  const std::byte* const all = gpu::emulator::exchange(&left, sizeof(left));
  for (int place = 0; place < 4; ++place) {
    LeftInRegisters of;
    std::memcpy(&of, all + static_cast<std::size_t>(lane() / 4 * 4 + place) * gpu::emulator::kExchangeBytes,
                sizeof(of));
    for (int i = 0; i < 4; ++i) {
      const auto pair = std::bit_cast<Pack<BFloat16, 2>>(of.pairs[i]);
      for (int j = 0; j < 2; ++j) rows[i % 2][i / 2 * 8 + place * 2 + j] = to_float(pair.at[j]);
    }
  }
  multiply_rows<kRightByDepth>(sums, rows, right, true);
}

#else

// Returns the matrix descriptor of an operand: start address, stride between panels and stride between groups
// of eight lines, all in units of 16 bytes, and the swizzle mode (1: within 128 bytes).
template <bool kByDepth>
PRIMUS_DEVICE std::uint64_t describe(const BFloat16* operand) {
#if PRIMUS_WARPGROUPS
  constexpr std::uint64_t kPanels = kByDepth ? kPanelLine * 128 / 16 : 1, kEightLines = 8 * 128 / 16;
  const auto begin = static_cast<std::uint32_t>(__cvta_generic_to_shared(operand));
  return (begin & 0x3FFFF) >> 4 | kPanels << 16 | kEightLines << 32 | std::uint64_t{1} << 62;
#else
  return 0;
#endif
}

#define PRIMUS_FOUR_SUMS(i) "+f"(s[i]), "+f"(s[(i) + 1]), "+f"(s[(i) + 2]), "+f"(s[(i) + 3])
#define PRIMUS_SIXTEEN_SUMS(i) \
  PRIMUS_FOUR_SUMS(i), PRIMUS_FOUR_SUMS((i) + 4), PRIMUS_FOUR_SUMS((i) + 8), PRIMUS_FOUR_SUMS((i) + 12)
// clang-format off

// Products of few columns.
template <bool kLeftByDepth, bool kRightByDepth, int kCols>
PRIMUS_DEVICE void multiply_narrow([[maybe_unused]] WarpgroupSums<kCols>& sums,
                                   [[maybe_unused]] const BFloat16* left,
                                   [[maybe_unused]] const BFloat16* right, [[maybe_unused]] bool add) {
#if PRIMUS_WARPGROUPS
  float(&s)[WarpgroupSums<kCols>::kCount] = sums.at;
  if constexpr (kCols == 32) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, add, 1, 1, %19, %20;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 16) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, add, 1, 1, %11, %12;\n"
        "}"
        : PRIMUS_FOUR_SUMS(0), PRIMUS_FOUR_SUMS(4)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else {
    static_assert(kCols == 16, "no such product is written down here");
  }
#endif
}

template <bool kLeftByDepth, bool kRightByDepth, int kCols>
PRIMUS_DEVICE void multiply([[maybe_unused]] WarpgroupSums<kCols>& sums,
                            [[maybe_unused]] const BFloat16* left, [[maybe_unused]] const BFloat16* right,
                            [[maybe_unused]] bool add) {
#if PRIMUS_WARPGROUPS
  float(&s)[WarpgroupSums<kCols>::kCount] = sums.at;
  if constexpr (kCols == 256) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, %131, %132;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48), PRIMUS_SIXTEEN_SUMS(64), PRIMUS_SIXTEEN_SUMS(80), PRIMUS_SIXTEEN_SUMS(96), PRIMUS_SIXTEEN_SUMS(112)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 128) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, %67, %68;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 64) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1, %35, %36;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else {
    multiply_narrow<kLeftByDepth, kRightByDepth>(sums, left, right, add);
  }
#endif
}

template <bool kRightByDepth, int kCols>
PRIMUS_DEVICE void multiply([[maybe_unused]] WarpgroupSums<kCols>& sums,
                            [[maybe_unused]] const LeftInRegisters& left,
                            [[maybe_unused]] const BFloat16* right) {
#if PRIMUS_WARPGROUPS
  float(&s)[WarpgroupSums<kCols>::kCount] = sums.at;
  if constexpr (kCols == 128) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48)
        : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
          "l"(describe<kRightByDepth>(right)), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16)
        : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
          "l"(describe<kRightByDepth>(right)), "n"(kRightByDepth ? 1 : 0));
  } else {
    static_assert(kCols == 128, "no such product is written down here");
  }
#endif
}

// clang-format on
#undef PRIMUS_SIXTEEN_SUMS
#undef PRIMUS_FOUR_SUMS

#endif

}  // namespace primus::turbo::PRIMUS_GPU
