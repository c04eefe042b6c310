#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "turbo/gemm/pack.h"

// AMX needs about one cycle per element of A, so bf16 packing must use full vectors. Two elements that are
// adjacent along k are moved as one 32-bit word. Therefore the transposition of such pairs is a transposition
// of 32-bit words.
namespace primus::turbo::gemm {
namespace {

using Bits = std::uint16_t;

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")

// to[j][i] = from[i][j] for 16 x 16 words of 32 bits; strides in bytes. Result rows are in groups of four,
// and the starts of consecutive groups are `four_stride` bytes apart.
template <class Rows>
inline void transpose_16x16(Rows from, char* to, std::int64_t to_stride, std::int64_t four_stride) {
  // 128-bit loads bring rows i, i+4, i+8 and i+12 into one register. The remaining transpositions are within
  // 128-bit lanes. This saves half of the shuffles, for which the CPU has only one execution port.
  __m512i part[16];
  for (int i = 0; i < 4; ++i) {
    for (int q = 0; q < 4; ++q) {
      const auto lane = [&](int row) {
        return reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(from[i + row]) + q * 16);
      };
      __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(lane(0)));
      x = _mm512_inserti32x4(x, _mm_loadu_si128(lane(4)), 1);
      x = _mm512_inserti32x4(x, _mm_loadu_si128(lane(8)), 2);
      x = _mm512_inserti32x4(x, _mm_loadu_si128(lane(12)), 3);
      part[q * 4 + i] = x;
    }
  }
  for (int q = 0; q < 4; ++q) {
    const __m512i* row = part + q * 4;
    const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]),
                  high01 = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]),
                  high23 = _mm512_unpackhi_epi32(row[2], row[3]);
    char* out = to + q * four_stride;
    _mm512_storeu_si512(out, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(out + to_stride, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(out + 2 * to_stride, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(out + 3 * to_stride, _mm512_unpackhi_epi64(high01, high23));
  }
}

// Returns pairs (even[j], odd[j]) of 16 columns.
inline __m512i interleave(const Bits* even, const Bits* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Functions for full blocks. Each function prefetches the block that is packed next, because the hardware
// prefetcher cannot track as many streams as a block has rows.
template <int kMr, int kKb>
struct RowsOfA {
  template <class Rows>
  static void pack(Rows from, Bits* to) {
    for (int r = 0; r < kMr; ++r) {
      for (int k = 0; k < kKb; k += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(from.ahead(r + kMr) + k), _MM_HINT_T0);
        _mm512_storeu_si512(to + r * kKb + k, _mm512_loadu_si512(from[r] + k));
      }
    }
  }
};

template <int kMr, int kKb>
struct ColumnsOfA {
  template <class Rows>
  static void pack(Rows from, Bits* to) {
    // Pairs of elements along k for 32 rows. Interleaving within 128-bit lanes puts rows 0-3, 8-11, ... into
    // the first array and rows 4-7, 12-15, ... into the second. The transposition restores the order without
    // extra instructions.
    alignas(64) Bits pairs[2][16][32];
    for (int r = 0; r < kMr; r += 32) {
      for (int k = 0; k < kKb; k += 32) {
#pragma GCC unroll 2
        for (int p = 0; p < 16; ++p) {
          const int row = k + 2 * p;
          const __m512i even = _mm512_loadu_si512(from[row] + r), odd = _mm512_loadu_si512(from[row + 1] + r);
          _mm_prefetch(reinterpret_cast<const char*>(from.ahead(row + kKb) + r), _MM_HINT_T0);
          _mm_prefetch(reinterpret_cast<const char*>(from.ahead(row + kKb + 1) + r), _MM_HINT_T0);
          _mm512_store_si512(pairs[0][p], _mm512_unpacklo_epi16(even, odd));
          _mm512_store_si512(pairs[1][p], _mm512_unpackhi_epi16(even, odd));
        }
        for (int half = 0; half < 2; ++half) {
          transpose_16x16(RowsInOrder<Bits>{pairs[half][0], 32},
                          reinterpret_cast<char*>(to + (r + 4 * half) * kKb + k), kKb * 2, 8 * kKb * 2);
        }
      }
    }
  }
};

template <int kNr, int kKb>
struct RowsOfB {
  template <class Rows>
  static void pack(Rows from, Bits* to) {
    for (int c = 0; c < kNr; c += 16) {
      for (int k = 0; k < kKb; k += 32) {
        for (int r = 0; r < 16; ++r)
          _mm_prefetch(reinterpret_cast<const char*>(from.ahead(c + r + kNr) + k), _MM_HINT_T0);
        transpose_16x16(from.at(c, k), reinterpret_cast<char*>(to + (k / 2) * kNr * 2 + c * 2), kNr * 4,
                        4 * kNr * 4);
      }
    }
  }
};

template <int kNr, int kKb>
struct ColumnsOfB {
  template <class Rows>
  static void pack(Rows from, Bits* to) {
    for (int p = 0; p < kKb / 2; ++p) {
      const Bits *even = from[2 * p], *odd = from[2 * p + 1];
      const Bits *even_ahead = from.ahead(2 * p + kKb), *odd_ahead = from.ahead(2 * p + 1 + kKb);
      for (int c = 0; c < kNr; c += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(even_ahead + c), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(odd_ahead + c), _MM_HINT_T0);
      }
      for (int c = 0; c < kNr; c += 16)
        _mm512_storeu_si512(to + (p * kNr + c) * 2, interleave(even + c, odd + c));
    }
  }
};

// Functions for fp32 blocks of 64 x 64, which copy the rows of a strip, or transpose them.
struct F32Copy {
  template <class Rows>
  static void pack(Rows from, float* to) {
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < 64; j += 16) _mm512_storeu_ps(to + i * 64 + j, _mm512_loadu_ps(from[i] + j));
    }
  }
};

struct F32Transpose {
  template <class Rows>
  static void pack(Rows from, float* to) {
    for (int i = 0; i < 64; i += 16) {
      for (int j = 0; j < 64; j += 16)
        transpose_16x16(from.at(i, j), reinterpret_cast<char*>(to + j * 64 + i), 64 * 4, 4 * 64 * 4);
    }
  }
};

#pragma GCC pop_options

// Copies the valid part [rows, cols] of an edge block into a zero-padded block [kRows, kCols].
template <int kRows, int kCols, class Rows, class T>
void copy_padded(Rows from, std::int64_t rows, std::int64_t cols, T* to) {
  std::memset(to, 0, sizeof(T) * kRows * kCols);
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * kCols, from[i], sizeof(T) * static_cast<std::size_t>(cols));
}

// Prefetches rows [begin, end) to L2, row by row. The hardware prefetcher cannot predict the next row.
template <class Rows>
void fetch_rows(Rows from, std::int64_t begin, std::int64_t end, std::int64_t extent, std::int64_t width) {
  constexpr std::int64_t kLine = 64 / sizeof(*from[0]);
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t i = 0; i < std::min(extent, width); i += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(from[row] + i), _MM_HINT_T1);
  }
}

// `Block` has the functions for a full block of kWidth rows (or columns) and kKb values of k.
template <class T, int kWidth, int kKb, bool kContiguous, class Block>
void pack(const PackCall& call) {
  constexpr int kRows = kContiguous ? kWidth : kKb, kCols = kContiguous ? kKb : kWidth;
  const std::int64_t blocks = (call.k + kKb - 1) / kKb;
  with_rows<T>(call, kContiguous ? call.extent : call.k, [&](auto source) {
    for (std::int64_t i = 0; i < blocks * call.strips; ++i) {
      // If k runs along a row, k is the inner loop. If k runs across rows, k is the outer loop: adjacent
      // strips read the same rows, and the pages of these rows stay in the TLB.
      const std::int64_t k = (kContiguous ? i % blocks : i / call.strips) * kKb;
      const std::int64_t s = kContiguous ? i / blocks : i % call.strips;
      const std::int64_t ks = std::min<std::int64_t>(kKb, call.k - k);
      const std::int64_t first = s * kWidth;
      const std::int64_t width = std::clamp<std::int64_t>(call.extent - first, 0, kWidth);
      auto* to = reinterpret_cast<T*>(static_cast<char*>(call.packed) + s * call.strip_bytes) + k * kWidth;
      const auto from = kContiguous ? source.at(first, k) : source.at(k, first);
      if constexpr (!kContiguous && decltype(source)::kPicked) {
        if (s == 0)
          fetch_rows(source, k + kKb, std::min(k + 2 * kKb, call.k), call.extent, call.strips * kWidth);
      }
      if (width == kWidth && ks == kKb) {
        Block::pack(from, to);
        continue;
      }
      alignas(64) T padded[kWidth * kKb];
      copy_padded<kRows, kCols>(from, kContiguous ? width : ks, kContiguous ? ks : width, padded);
      Block::pack(RowsInOrder<T>{padded, kCols}, to);
    }
  });
}

template <int kMr, int kNr, int kKb>
OperandPackers packers() {
  return {{pack<Bits, kMr, kKb, true, RowsOfA<kMr, kKb>>, pack<Bits, kMr, kKb, false, ColumnsOfA<kMr, kKb>>},
          {pack<Bits, kNr, kKb, true, RowsOfB<kNr, kKb>>, pack<Bits, kNr, kKb, false, ColumnsOfB<kNr, kKb>>}};
}

}  // namespace

OperandPackers bf16_packers_32x32x32() { return packers<32, 32, 32>(); }
OperandPackers bf16_packers_64x64x64() { return packers<64, 64, 64>(); }

OperandPackers f32_packers_64x64x64_avx512() {
  return {{pack<float, 64, 64, true, F32Copy>, pack<float, 64, 64, false, F32Transpose>},
          {pack<float, 64, 64, true, F32Transpose>, pack<float, 64, 64, false, F32Copy>}};
}

}  // namespace primus::turbo::gemm
