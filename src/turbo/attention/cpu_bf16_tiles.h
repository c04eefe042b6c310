// Tile products in bf16 with fp32 sums, on the units that CPUs have for it (AMX, vdpbf16ps), through the
// kernels and packing functions of turbo/gemm. The interface is that of Fp32Tiles, which explains it.
// Probabilities and score gradients are rounded to bf16 on their way into the second product, as
// FlashAttention does on GPUs.
#pragma once

#if defined(__AVX512BW__)

#include <immintrin.h>

#include "turbo/attention/cpu_geometry.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

class Bf16Tiles {
 public:
  using Source = BFloat16;
  using Element = std::uint16_t;

  // Null when bf16 operands are best multiplied in fp32 on this CPU.
  static const gemm::Kernel* find() {
    const gemm::Kernel* kernel = gemm::find_kernel(default_gemm_provider(DType::kBF16), DType::kBF16);
    const bool usable = kernel && kernel->packed == DType::kBF16 && kernel->mr == kernel->nr &&
                        kernel->nr == kernel->kb && kTile % kernel->kb == 0 && kernel->kb % kGroup == 0;
    return usable ? kernel : nullptr;
  }
  // Products come in cubes of `kb`: 32 or 64.
  explicit Bf16Tiles(const gemm::Kernel& kernel) : kernel_(kernel), block_(kernel.kb) {}

  std::int64_t lane_block() const { return block_; }
  std::int64_t key_block() const { return block_; }
  void begin() const {
    if (kernel_.begin) kernel_.begin();
  }
  void end() const {
    if (kernel_.end) kernel_.end();
  }

  std::int64_t left_elements(std::int64_t dim) const { return kTile * depth(dim); }
  std::int64_t right_elements(std::int64_t dim) const { return kTile * depth(dim); }
  std::int64_t columns_elements(std::int64_t dim) const { return kTile * depth(dim); }
  std::int64_t scores_elements() const { return kTile * kTile; }
  std::int64_t transposed_rows(std::int64_t dim) const { return depth(dim); }
  std::int64_t panel_width(std::int64_t) const { return block_; }
  std::int64_t panels(std::int64_t dim) const { return depth(dim) / block_; }

  void pack_left(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                 Element* to) const {
    kernel_.pack_a.k_contiguous(pack_call(from, stride, rows, dim, kTile / block_, to, depth(dim)));
  }
  static constexpr bool kLeftIsLeftTransposed = false;
  void pack_left_transposed(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                            Element* to) const {
    kernel_.pack_a.k_strided(pack_call(from, stride, dim, rows, panels(dim), to, kTile));
  }
  void pack_right(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                  Element* to) const {
    kernel_.pack_b.k_contiguous(pack_call(from, stride, rows, dim, kTile / block_, to, depth(dim)));
  }
  void pack_columns(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                    Element* to) const {
    kernel_.pack_b.k_strided(pack_call(from, stride, dim, rows, panels(dim), to, kTile));
  }

  void score(const Strip& strip, std::int64_t dim, const Element* left, const Element* right,
             float* scores) const {
    for (std::int64_t key = strip.keys.begin; key < strip.keys.end; key += block_) {
      for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; lane += block_) {
        multiply(left + key * depth(dim), right + lane * depth(dim), nullptr, scores + key * kTile + lane,
                 kTile, depth(dim));
      }
    }
  }
  void add_transposed(const Strip& strip, std::int64_t dim, const Element* left, const Element* scores,
                      float* sum) const {
    for (std::int64_t row = 0; row < depth(dim); row += block_) {
      for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; lane += block_) {
        float* c = sum + row * kTile + lane;
        multiply(left + row * kTile + strip.keys.begin * block_,
                 scores + lane * kTile + strip.keys.begin * block_, c, c, kTile, strip.keys.size());
      }
    }
  }
  // `rows`: of a panel of `sum`.
  void add_by_key(const Strip& strip, std::int64_t dim, const Element* scores, const Element* columns,
                  float* sum, std::int64_t first_row, std::int64_t rows) const {
    for (std::int64_t key = strip.keys.begin; key < strip.keys.end; key += block_) {
      for (std::int64_t panel = 0; panel < panels(dim); ++panel) {
        float* c = sum + (panel * rows + first_row + key) * block_;
        multiply(scores + key * kTile + strip.lanes.begin * block_,
                 columns + panel * block_ * kTile + strip.lanes.begin * block_, c, c, block_,
                 strip.lanes.size());
      }
    }
  }

  static constexpr bool kScoresAreLeftAndRight = false;
  // Right operand: strips of `block` lanes, in them pairs of keys.
  PRIMUS_INLINE void put_right(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                               Element* to) const {
    const __m512i low = _mm512_srli_epi32(rounded_bits(even), 16);
    const __m512i high =
        _mm512_and_si512(rounded_bits(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
    _mm512_storeu_si512(to + lane / block_ * block_ * kTile + key * block_ + lane % block_ * 2,
                        _mm512_or_si512(low, high));
  }
  // Left operand: strips of `block` keys, in them square blocks, one after another along the lanes.
  PRIMUS_INLINE void put_left(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                              Element* to) const {
    Element* row = to + key / block_ * block_ * kTile + lane / block_ * block_ * block_ +
                   key % block_ * block_ + lane % block_;
    store_group(even, row);
    store_group(odd, row + block_);
  }

 private:
  std::int64_t depth(std::int64_t dim) const { return round_up(dim, block_); }

  // `depth`: the k range that a strip has room for.
  gemm::PackCall pack_call(const BFloat16* from, std::int64_t stride, std::int64_t extent, std::int64_t k,
                           std::int64_t strips, Element* to, std::int64_t strip_depth) const {
    return {.source = from,
            .ld = stride,
            .extent = extent,
            .k = k,
            .strips = static_cast<int>(strips),
            .packed = to,
            .strip_bytes = strip_depth * block_ * static_cast<std::int64_t>(sizeof(Element))};
  }

  void multiply(const Element* a, const Element* b, const float* c_in, float* c, std::int64_t ldc,
                std::int64_t k) const {
    kernel_.run({.a = a,
                 .b = b,
                 .c_in = c_in,
                 .ld_in = ldc,
                 .c_out = c,
                 .ld_out = ldc,
                 .blocks = k / block_,
                 .rows = kernel_.mr,
                 // Tiles are small and stay in L1: nothing worth fetching ahead.
                 .next_b = reinterpret_cast<const char*>(b),
                 .next_c = reinterpret_cast<const char*>(c),
                 .next_c_stride = 0,
                 .next_c_second = 0});
  }

  // Rounded to bf16, which is then the upper half of each number. Ties go away from zero: of 65536 numbers
  // one is a tie. NaN stays NaN: a payload that comes from bf16 operands does not overflow.
  PRIMUS_INLINE static __m512i rounded_bits(const float* x) {
    return _mm512_add_epi32(_mm512_loadu_si512(x), _mm512_set1_epi32(0x8000));
  }
  PRIMUS_INLINE static void store_group(const float* from, Element* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(from), 16)));
  }

  const gemm::Kernel& kernel_;
  std::int64_t block_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA

#endif
