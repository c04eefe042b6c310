#include "turbo/gemm/cpu_features.h"
#include "turbo/gemm/kernel.h"
#include "turbo/gemm/pack.h"
#include "turbo/gemm/tile_io.h"

// Intel AMX: eight tile registers of 16 rows x 64 bytes. Tiles 0-3 hold a 32 x 32 block of C, tiles 4-5 hold
// 2 x (16 rows x 32 k) of A, and tiles 6-7 hold 2 x (16 pairs of k x 16 columns) of B. One k block of 32
// needs four loads and four products; a product takes 16 cycles, a load 8 if it hits L1.
//
// The strip of B stays in L1 while strips of A are loaded from L2. Loads of A have the non-temporal hint, so
// that A does not evict B. The hint raises the rate of the inner loop from 62 % to 85 % of the tile units'
// peak, if a panel of B fits into L1 (512 x 32 x 2 bytes = 32 of 48 KiB).
//
// The instructions are inline assembly, because the tile intrinsics of g++ 12 do not tell the compiler which
// memory they read. With these intrinsics, the compiler may also remove the stores of the tile configuration.
namespace primus::turbo::gemm {
namespace {

constexpr int kMr = 32, kNr = 32, kKb = 32;

struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

void run_32_rows(const TileCall& call) {
  const char* c_in = reinterpret_cast<const char*>(call.c_in);
  char* c_out = reinterpret_cast<char*>(call.c_out);
  const std::int64_t in_stride = call.ld_in * 4, out_stride = call.ld_out * 4;
  if (c_in) {
    asm volatile(
        "tileloadd (%[c], %[stride]), %%tmm0\n\t"
        "tileloadd 64(%[c], %[stride]), %%tmm1\n\t"
        "tileloadd (%[c2], %[stride]), %%tmm2\n\t"
        "tileloadd 64(%[c2], %[stride]), %%tmm3" ::[c] "r"(c_in),
        [c2] "r"(c_in + 16 * in_stride), [stride] "r"(in_stride)
        : "memory");
  } else {
    asm volatile(
        "tilezero %tmm0\n\t"
        "tilezero %tmm1\n\t"
        "tilezero %tmm2\n\t"
        "tilezero %tmm3");
  }
  const void *a = call.a, *b = call.b;
  const char *ahead = call.ahead, *next_c = call.next_c, *second_c = next_c + call.next_c_second;
  std::int64_t blocks = call.blocks;
  // The next block of C is prefetched only to L2: in L1, rows whose stride is a power of two map to few sets
  // and would evict each other. The loop prefetches two rows per block. If k is small, the remaining rows are
  // prefetched after the loop.
  const std::int64_t rows = call.next_c_second == 64 ? kMr : kMr / 2;
  for (std::int64_t row = 2 * blocks; row < rows; ++row) {
    asm volatile(
        "prefetcht1 (%[next_c], %[offset])\n\t"
        "prefetcht1 (%[second_c], %[offset])" ::[next_c] "r"(next_c),
        [second_c] "r"(second_c), [offset] "r"(row * call.next_c_stride));
  }
  asm volatile(
      "1:\n\t"
      "tileloadd (%[b], %[b_stride]), %%tmm6\n\t"
      "tileloaddt1 (%[a], %[a_stride]), %%tmm4\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "prefetcht1 (%[next_c])\n\t"
      "prefetcht1 (%[second_c])\n\t"
      "tileloadd 64(%[b], %[b_stride]), %%tmm7\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "prefetcht1 (%[next_c], %[c_stride])\n\t"
      "prefetcht1 (%[second_c], %[c_stride])\n\t"
      "tileloaddt1 1024(%[a], %[a_stride]), %%tmm5\n\t"
      "prefetcht1 (%[ahead])\n\t"
      "prefetcht1 64(%[ahead])\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "prefetcht1 128(%[ahead])\n\t"
      "prefetcht1 192(%[ahead])\n\t"
      "add $2048, %[a]\n\t"
      "add $2048, %[b]\n\t"
      "add $256, %[ahead]\n\t"
      "lea (%[next_c], %[c_stride], 2), %[next_c]\n\t"
      "lea (%[second_c], %[c_stride], 2), %[second_c]\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %[blocks]\n\t"
      "jnz 1b"
      : [a] "+r"(a), [b] "+r"(b), [ahead] "+r"(ahead), [next_c] "+r"(next_c), [second_c] "+r"(second_c),
        [blocks] "+r"(blocks)
      :
      [a_stride] "r"(std::int64_t{64}), [b_stride] "r"(std::int64_t{128}), [c_stride] "r"(call.next_c_stride)
      : "memory", "cc");
  asm volatile(
      "tilestored %%tmm0, (%[c], %[stride])\n\t"
      "tilestored %%tmm1, 64(%[c], %[stride])\n\t"
      "tilestored %%tmm2, (%[c2], %[stride])\n\t"
      "tilestored %%tmm3, 64(%[c2], %[stride])" ::[c] "r"(c_out),
      [c2] "r"(c_out + 16 * out_stride), [stride] "r"(out_stride)
      : "memory");
}

// Multiplies only the upper 16 rows.
void run_16_rows(const TileCall& call) {
  const std::int64_t in_stride = call.ld_in * 4, out_stride = call.ld_out * 4;
  if (call.c_in) {
    asm volatile(
        "tileloadd (%[c], %[stride]), %%tmm0\n\t"
        "tileloadd 64(%[c], %[stride]), %%tmm1" ::[c] "r"(call.c_in),
        [stride] "r"(in_stride)
        : "memory");
  } else {
    asm volatile(
        "tilezero %tmm0\n\t"
        "tilezero %tmm1");
  }
  const void *a = call.a, *b = call.b;
  std::int64_t blocks = call.blocks;
  asm volatile(
      "1:\n\t"
      "tileloaddt1 (%[a], %[a_stride]), %%tmm4\n\t"
      "tileloadd (%[b], %[b_stride]), %%tmm6\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tileloadd 64(%[b], %[b_stride]), %%tmm7\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "add $2048, %[a]\n\t"
      "add $2048, %[b]\n\t"
      "dec %[blocks]\n\t"
      "jnz 1b"
      : [a] "+r"(a), [b] "+r"(b), [blocks] "+r"(blocks)
      : [a_stride] "r"(std::int64_t{64}), [b_stride] "r"(std::int64_t{128})
      : "memory", "cc");
  asm volatile(
      "tilestored %%tmm0, (%[c], %[stride])\n\t"
      "tilestored %%tmm1, 64(%[c], %[stride])" ::[c] "r"(call.c_out),
      [stride] "r"(out_stride)
      : "memory");
}

void run(const TileCall& call) { call.rows <= 16 ? run_16_rows(call) : run_32_rows(call); }

Kernel make() {
  return {.mr = kMr,
          .nr = kNr,
          .kb = kKb,
          .max_panel = 512,
          .cache = {1200 << 10, 384, 192 << 10, 768 << 10},
          .ahead_bytes = 256,
          .packed = DType::kBF16,
          .any_c = true,
          .run = run,
          .begin = begin_amx,
          .end = end_amx,
          .pack = bf16_packers_32x32x32(),
          .io = tile_io_avx512_bf16()};
}

}  // namespace

void begin_amx() {
  static constexpr TileConfiguration kConfiguration;
  asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
}

void end_amx() { asm volatile("tilerelease"); }

const Kernel* amx_kernel() {
  static const Kernel kernel = make();
  return cpu_features().amx_bf16 ? &kernel : nullptr;
}

void amx_product_loop(std::int64_t iterations) {
  begin_amx();
  asm volatile(
      "tilezero %%tmm0\n\t"
      "tilezero %%tmm1\n\t"
      "tilezero %%tmm2\n\t"
      "tilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\t"
      "tilezero %%tmm5\n\t"
      "tilezero %%tmm6\n\t"
      "tilezero %%tmm7\n\t"
      "1:\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %[iterations]\n\t"
      "jnz 1b"
      : [iterations] "+r"(iterations)::"cc");
  end_amx();
}

}  // namespace primus::turbo::gemm
