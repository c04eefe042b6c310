// Tile products in bf16 with fp32 sums. The interface is that of Fp32Tiles; cpu_fp32_tiles.h explains it.
// Probabilities and score gradients are rounded to bf16 before the second product, as in FlashAttention on
// GPUs.
//
// Two elements that are adjacent along k are packed into one 32-bit word. Transposing such pairs is therefore
// the same as transposing floats.
#pragma once

#if defined(__AVX512BW__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "turbo/attention/cpu_bf16_products.h"
#include "turbo/attention/cpu_geometry.h"
#include "turbo/attention/cpu_vectors.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

class Bf16Tiles {
 public:
  using Source = BFloat16;
  using Element = std::uint16_t;

  explicit Bf16Tiles(const Bf16Unit& unit) : unit_(unit) {}

  static constexpr std::int64_t kLaneBlock = kBf16Block, kKeyBlock = kBf16Block;
  static std::int64_t lane_block(std::int64_t /*queries*/) { return kLaneBlock; }
  void begin() const { unit_.begin(); }
  void end() const { unit_.end(); }

  static std::int64_t left_elements(std::int64_t dim) { return kTile * depth(dim); }
  static std::int64_t right_elements(std::int64_t dim) { return kTile * depth(dim); }
  static std::int64_t columns_elements(std::int64_t dim) { return kTile * depth(dim); }
  static std::int64_t transposed_rows(std::int64_t dim) { return depth(dim); }
  static std::int64_t panel_width(std::int64_t) { return kBf16Block; }

  // Packs strips of 32 rows: [k / 32][32 rows][32 k]; score tiles are [32 rows][kTile keys].
  static void pack_left(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                        Element* to) {
    for_each_square(from, stride, rows, dim, [&](std::int64_t row, std::int64_t col, const Element* square) {
      std::memcpy(to + row * depth(dim) + col * kBf16Block, square, kSquare * sizeof(Element));
    });
  }
  static constexpr bool kLeftIsLeftTransposed = false;
  static void pack_left_transposed(const BFloat16* from, std::int64_t stride, std::int64_t rows,
                                   std::int64_t dim, Element* to) {
    for_each_square(from, stride, rows, dim, [&](std::int64_t row, std::int64_t col, const Element* square) {
      Element pairs[kSquare];
      interleave(square, pairs);
      transpose_words(pairs, kBf16Block, kBf16Block / 2, kBf16Block, to + col * kTile + row * kBf16Block,
                      kBf16Block / 2);
    });
  }
  // Packs strips of 32 lanes: [dim / 2][32 lanes][2].
  static void pack_right(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                         Element* to) {
    for_each_square(from, stride, rows, dim, [&](std::int64_t row, std::int64_t col, const Element* square) {
      transpose_words(square, kBf16Block / 2, kBf16Block, kBf16Block / 2,
                      to + row * depth(dim) + col * kBf16Block, kBf16Block);
    });
  }
  // Packs strips of 32 columns: [kTile rows / 2][32 columns][2].
  static void pack_columns(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                           Element* to) {
    for_each_square(from, stride, rows, dim, [&](std::int64_t row, std::int64_t col, const Element* square) {
      interleave(square, to + col * kTile + row * kBf16Block);
    });
  }

  void score(const Strip& strip, std::int64_t dim, const Element* left, const Element* right,
             float* scores) const {
    unit_.multiply({.a = left + strip.keys.begin * depth(dim),
                    .b = right + strip.lanes.begin * depth(dim),
                    .a_strip = kBf16Block * depth(dim),
                    .b_strip = kBf16Block * depth(dim),
                    .c = scores + strip.keys.begin * kTile + strip.lanes.begin,
                    .ldc = kTile,
                    .c_rows = kBf16Block * kTile,
                    .c_cols = kBf16Block,
                    .row_blocks = strip.keys.size() / kBf16Block,
                    .col_blocks = strip.lanes.size() / kBf16Block,
                    .k_blocks = depth(dim) / kBf16Block});
  }
  void add_transposed(const Strip& strip, std::int64_t dim, const Element* left, const Element* scores,
                      float* sum) const {
    unit_.multiply_accumulate({.a = left + strip.keys.begin * kBf16Block,
                               .b = scores + strip.lanes.begin * kTile + strip.keys.begin * kBf16Block,
                               .a_strip = kBf16Block * kTile,
                               .b_strip = kBf16Block * kTile,
                               .c = sum + strip.lanes.begin,
                               .ldc = kTile,
                               .c_rows = kBf16Block * kTile,
                               .c_cols = kBf16Block,
                               .row_blocks = depth(dim) / kBf16Block,
                               .col_blocks = strip.lanes.size() / kBf16Block,
                               .k_blocks = strip.keys.size() / kBf16Block});
  }
  // `rows` is the number of rows in a panel of `sum`.
  void add_by_key(const Strip& strip, std::int64_t dim, const Element* scores, const Element* columns,
                  float* sum, std::int64_t first_row, std::int64_t rows) const {
    unit_.multiply_accumulate({.a = scores + strip.keys.begin * kTile + strip.lanes.begin * kBf16Block,
                               .b = columns + strip.lanes.begin * kBf16Block,
                               .a_strip = kBf16Block * kTile,
                               .b_strip = kBf16Block * kTile,
                               .c = sum + (first_row + strip.keys.begin) * kBf16Block,
                               .ldc = kBf16Block,
                               .c_rows = kBf16Block * kBf16Block,
                               .c_cols = rows * kBf16Block,
                               .row_blocks = strip.keys.size() / kBf16Block,
                               .col_blocks = depth(dim) / kBf16Block,
                               .k_blocks = strip.lanes.size() / kBf16Block});
  }

  static constexpr bool kScoresAreLeftAndRight = false;
  // Writes a right operand as strips of 32 lanes. Within a strip, the two keys of a pair are adjacent.
  PRIMUS_INLINE static void put_right(std::int64_t key, std::int64_t lane, const float* even,
                                      const float* odd, Element* to) {
    const __m512i low = _mm512_srli_epi32(rounded_bits(even), 16);
    const __m512i high =
        _mm512_and_si512(rounded_bits(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
    _mm512_storeu_si512(
        to + lane / kBf16Block * kBf16Block * kTile + key * kBf16Block + lane % kBf16Block * 2,
        _mm512_or_si512(low, high));
  }
  // Writes a left operand as strips of 32 keys. A strip consists of consecutive square blocks along the
  // lanes.
  PRIMUS_INLINE static void put_left(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                                     Element* to) {
    Element* row = to + key / kBf16Block * kBf16Block * kTile + lane / kBf16Block * kSquare +
                   key % kBf16Block * kBf16Block + lane % kBf16Block;
    store_group(even, row);
    store_group(odd, row + kBf16Block);
  }

 private:
  static constexpr std::int64_t kSquare = kBf16Block * kBf16Block;
  static std::int64_t depth(std::int64_t dim) { return round_up(dim, kBf16Block); }

  // Calls body(row, col, square) for the 32 x 32 squares of a tile, with dim padded to complete squares. Each
  // square is gathered into contiguous memory, with zeros outside the source.
  template <class Body>
  static void for_each_square(const BFloat16* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                              Body body) {
    alignas(64) Element square[kSquare];
    for (std::int64_t row = 0; row < kTile; row += kBf16Block) {
      for (std::int64_t col = 0; col < dim; col += kBf16Block) {
        const std::int64_t width = std::min(dim - col, kBf16Block);
        const auto mask = static_cast<__mmask32>((std::uint64_t{1} << width) - 1);
        for (std::int64_t i = 0; i < kBf16Block; ++i) {
          const __m512i x = row + i < rows ? _mm512_maskz_loadu_epi16(mask, from + (row + i) * stride + col)
                                           : _mm512_setzero_si512();
          _mm512_store_si512(square + i * kBf16Block, x);
        }
        body(row, col, square);
      }
    }
  }

  // to[k / 2][c][2] = square[k][c]
  static void interleave(const Element* square, Element* to) {
    for (std::int64_t k = 0; k < kBf16Block; k += 2) {
      for (std::int64_t c = 0; c < kBf16Block; c += 16) {
        const auto half = [&](std::int64_t row) {
          return _mm512_cvtepu16_epi32(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(square + row * kBf16Block + c)));
        };
        _mm512_storeu_si512(to + k * kBf16Block + 2 * c,
                            _mm512_or_si512(half(k), _mm512_slli_epi32(half(k + 1), 16)));
      }
    }
  }

  // to[j][i] = from[i][j] for words of 32 bits; leading dimensions in words.
  static void transpose_words(const Element* from, std::int64_t from_ld, std::int64_t rows, std::int64_t cols,
                              Element* to, std::int64_t to_ld) {
    transpose(reinterpret_cast<const float*>(from), from_ld, rows, cols, reinterpret_cast<float*>(to), to_ld);
  }

  // Rounds to bf16. The result is the upper half of each word. Ties are rounded away from zero, which hardly
  // matters, because only one of 65536 numbers is a tie. NaN stays NaN: if the operands are bf16, rounding
  // cannot overflow the payload of a NaN.
  PRIMUS_INLINE static __m512i rounded_bits(const float* x) {
    return _mm512_add_epi32(_mm512_loadu_si512(x), _mm512_set1_epi32(0x8000));
  }
  PRIMUS_INLINE static void store_group(const float* from, Element* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(from), 16)));
  }

  const Bf16Unit& unit_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA

#endif
