#include "base/files/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace primus {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // 0x1edc6f41 with its bits reversed

// Slicing-by-8: table[k][b] is the checksum of byte b followed by k zero bytes.
constexpr auto kTable = [] {
  std::array<std::array<std::uint32_t, 256>, 8> table{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    table[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xffU];
    }
  }
  return table;
}();

std::uint64_t load64(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}

#if defined(__x86_64__)

// The crc32 instruction has a latency of three cycles, and can start every cycle. Three independent streams
// therefore saturate its unit. To join two streams, the code first extends the first checksum by zero bytes,
// one for each byte of the second stream. This takes four table look-ups.
constexpr std::size_t kStream = 1024;  // bytes

// Appending zero bytes is linear over GF(2). The result is the sum of the results for the single bytes of the
// checksum.
constexpr auto kSkipStream = [] {
  std::array<std::array<std::uint32_t, 256>, 4> table{};
  std::array<std::uint32_t, 32> skipped{};  // checksums of each single bit, extended by kStream zero bytes
  for (std::size_t bit = 0; bit < 32; ++bit) {
    skipped[bit] = 1U << bit;
    for (std::size_t n = 0; n < kStream; ++n)
      skipped[bit] = (skipped[bit] >> 8) ^ kTable[0][skipped[bit] & 0xffU];
  }
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((b >> bit & 1U) != 0) table[k][b] ^= skipped[8 * k + bit];
      }
    }
  }
  return table;
}();

std::uint32_t skip_stream(std::uint32_t crc) {
  return kSkipStream[0][crc & 0xffU] ^ kSkipStream[1][(crc >> 8) & 0xffU] ^
         kSkipStream[2][(crc >> 16) & 0xffU] ^ kSkipStream[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::uint32_t crc, const std::byte* at,
                                                             std::size_t size) {
  std::uint64_t a = ~crc;
  while (size >= 3 * kStream) {
    std::uint64_t b = 0, c = 0;
    for (const std::byte* end = at + kStream; at != end; at += 8) {
      a = _mm_crc32_u64(a, load64(at));
      b = _mm_crc32_u64(b, load64(at + kStream));
      c = _mm_crc32_u64(c, load64(at + 2 * kStream));
    }
    a = skip_stream(static_cast<std::uint32_t>(a)) ^ b;
    a = skip_stream(static_cast<std::uint32_t>(a)) ^ c;
    at += 2 * kStream;
    size -= 3 * kStream;
  }
  for (; size >= 8; at += 8, size -= 8) a = _mm_crc32_u64(a, load64(at));
  auto rest = static_cast<std::uint32_t>(a);
  for (; size > 0; ++at, --size) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*at));
  return ~rest;
}

#endif

// Checksums are polynomials over GF(2) modulo the CRC's polynomial. The lowest bit is the coefficient of the
// highest power. Appending a zero byte multiplies by x^8.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);
  }
  return product;
}

// kZeroBytes[k] is the factor by which appending 2^k zero bytes multiplies a checksum.
constexpr auto kZeroBytes = [] {
  std::array<std::uint32_t, 64> power{};
  power[0] = 1U << 23;  // x^8
  for (std::size_t k = 1; k < power.size(); ++k) power[k] = multiply(power[k - 1], power[k - 1]);
  return power;
}();

}  // namespace

std::uint32_t crc32c_zeros(std::uint32_t crc, std::uint64_t count) {
  crc = ~crc;
  for (std::size_t k = 0; count != 0; ++k, count >>= 1) {
    if ((count & 1U) != 0) crc = multiply(crc, kZeroBytes[k]);
  }
  return ~crc;
}

// Without the initial and the final inversion, a checksum would be linear in the data. The inversions add a
// constant to every checksum of this length: the checksum of zeros. The constants of `a` and `b` cancel in a
// ^ b, so the constant is added again.
std::uint32_t crc32c_merge(std::uint32_t a, std::uint32_t b, std::uint64_t bytes) {
  return a ^ b ^ crc32c_zeros(0, bytes);
}

std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> data) {
  static_assert(std::endian::native == std::endian::little);
  const std::byte* at = data.data();
  std::size_t size = data.size();
  crc = ~crc;
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint64_t word = load64(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTable[7 - k][(word >> (8 * k)) & 0xffU];
  }
  for (; size > 0; ++at, --size)
    crc = (crc >> 8) ^ kTable[0][(crc ^ static_cast<std::uint32_t>(*at)) & 0xffU];
  return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(crc, data.data(), data.size());
#endif
  return crc32c_portable(crc, data);
}

}  // namespace primus
