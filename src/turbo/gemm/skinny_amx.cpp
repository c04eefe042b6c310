#include <algorithm>
#include <cstring>

#include "tensor/bfloat16.h"
#include "turbo/gemm/kernel.h"
#include "turbo/gemm/skinny.h"

// The blocked product multiplies a tile of x by a tile of packed Wᵀ. This product exchanges the operands:
// rows of W are tile rows as they are in memory, so W needs no packing, and the few rows of x are packed.
// Each sum has the same pairs of factors in the same order, so its bits equal the blocked product's.
namespace primus::turbo::gemm {
namespace {

constexpr std::int64_t kTileRows = 16, kTileK = 32;
constexpr std::int64_t kWideRows = 2 * kTileRows;  // rows of W per step: two tiles
constexpr std::int64_t kAlignment = 64;

using Bits = std::uint16_t;

// Packs x as [k / 32][16 pairs of k][16 rows][2], with zeros after its rows and after k.
void pack_x(const GemmArgs& g, Bits* to) {
  std::memset(to, 0, static_cast<std::size_t>(round_up(g.k, kTileK) * kTileRows) * sizeof(Bits));
  for (std::int64_t m = 0; m < g.m; ++m) {
    const Bits* row = static_cast<const Bits*>(g.a) + (g.rows.a ? g.rows.a[m] : m) * g.lda;
    for (std::int64_t k = 0; k < g.k; ++k) to[(k / 2 * kTileRows + m) * 2 + k % 2] = row[k];
  }
}

float read_c(const GemmArgs& g, std::int64_t m, std::int64_t n) {
  const std::int64_t at = m * g.ldc + n;
  return g.c_dtype == DType::kF32 ? static_cast<const float*>(g.c)[at]
                                  : static_cast<float>(static_cast<const BFloat16*>(g.c)[at]);
}

void write_c(const GemmArgs& g, std::int64_t m, std::int64_t n, float value) {
  const std::int64_t at = m * g.ldc + n;
  if (g.c_dtype == DType::kF32) {
    static_cast<float*>(g.c)[at] = value;
  } else {
    static_cast<BFloat16*>(g.c)[at] = BFloat16(value);
  }
}

// Computes columns [n, n + count) of C; count is at most kWideRows.
void wide_columns(const GemmArgs& g, const Bits* x, std::int64_t n, std::int64_t count) {
  alignas(kAlignment) float c[kWideRows][kTileRows] = {};  // [column][row]
  alignas(kAlignment) Bits padded[kWideRows][kTileK] = {};
  if (g.accumulate) {
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t m = 0; m < g.m; ++m) c[j][m] = read_c(g, m, n + j);
    }
  }
  asm volatile(
      "tileloadd (%[c], %[stride]), %%tmm0\n\t"
      "tileloadd (%[lower], %[stride]), %%tmm1" ::[c] "r"(&c[0][0]),
      [lower] "r"(&c[kTileRows][0]), [stride] "r"(std::int64_t{64})
      : "memory");
  const Bits* w = static_cast<const Bits*>(g.b) + n * g.ldb;
  for (std::int64_t k = 0; k < g.k; k += kTileK, x += kTileK * kTileRows) {
    const std::int64_t width = std::min(kTileK, g.k - k);
    const Bits* from = w + k;
    std::int64_t ld = g.ldb;
    if (count < kWideRows || width < kTileK) {
      for (std::int64_t j = 0; j < count; ++j) {
        std::memcpy(padded[j], from + j * ld, static_cast<std::size_t>(width) * sizeof(Bits));
        std::fill(padded[j] + width, padded[j] + kTileK, Bits{0});
      }
      from = &padded[0][0];
      ld = kTileK;
    }
    asm volatile(
        "tileloadd (%[x], %[x_stride]), %%tmm4\n\t"
        "tileloaddt1 (%[w], %[w_stride]), %%tmm6\n\t"
        "tdpbf16ps %%tmm4, %%tmm6, %%tmm0\n\t"
        "tileloaddt1 (%[lower], %[w_stride]), %%tmm7\n\t"
        "tdpbf16ps %%tmm4, %%tmm7, %%tmm1" ::[x] "r"(x),
        [x_stride] "r"(std::int64_t{64}), [w] "r"(from), [lower] "r"(from + kTileRows * ld),
        [w_stride] "r"(ld * 2)
        : "memory");
  }
  asm volatile(
      "tilestored %%tmm0, (%[c], %[stride])\n\t"
      "tilestored %%tmm1, (%[lower], %[stride])" ::[c] "r"(&c[0][0]),
      [lower] "r"(&c[kTileRows][0]), [stride] "r"(std::int64_t{64})
      : "memory");
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t j = 0; j < count; ++j) write_c(g, m, n + j, c[j][m]);
  }
}

}  // namespace

std::size_t skinny_amx_workspace_bytes(const GemmArgs& g) {
  return static_cast<std::size_t>(round_up(g.k, kTileK) * kTileRows) * sizeof(Bits) + kAlignment;
}

void multiply_skinny_amx(ThreadPool& pool, const GemmArgs& g) {
  auto* const x = reinterpret_cast<Bits*>(round_up(reinterpret_cast<std::intptr_t>(g.workspace), kAlignment));
  pack_x(g, x);
  // As in multiply_skinny(): each task reads at least 32 KiB of W.
  const std::int64_t minimum = ceil_div(std::int64_t{32} << 10, g.k * size_of(g.ab_dtype));
  const std::int64_t grain = round_up(std::max(minimum, ceil_div(g.n, 8 * pool.size())), kWideRows);
  pool.parallel_for(g.n, grain, [&](std::int64_t begin, std::int64_t end, int) {
    begin_amx();
    for (std::int64_t n = begin; n < end; n += kWideRows) wide_columns(g, x, n, std::min(kWideRows, end - n));
    end_amx();
  });
}

}  // namespace primus::turbo::gemm
