// Tests of the CRC-32C checksum.
#include "base/files/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus {
namespace {

// The examples of RFC 3720, appendix B.4.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(0, {}), 0U);
  EXPECT_EQ(crc32c(0, as_bytes("123456789")), 0xe3069283U);
  const std::vector<std::byte> zeros(32, std::byte{0}), ones(32, std::byte{0xff});
  EXPECT_EQ(crc32c(0, zeros), 0x8a9136aaU);
  EXPECT_EQ(crc32c(0, ones), 0x62a8ab43U);
  EXPECT_EQ(crc32c_portable(0, as_bytes("123456789")), 0xe3069283U);
}

// Compares lengths around the block sizes of the fast version, at unaligned addresses, whole and in two
// pieces.
TEST(Crc32c, FastVersionEqualsPortable) {
  std::vector<std::byte> data(40000);
  std::uint32_t state = 1;
  for (auto& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  for (const std::size_t size :
       {1UL, 7UL, 8UL, 9UL, 63UL, 1024UL, 3071UL, 3072UL, 3073UL, 6144UL, 12289UL, 39990UL}) {
    for (const std::size_t start : {0UL, 1UL, 5UL}) {
      const auto part = std::span(data).subspan(start, size);
      const std::uint32_t expected = crc32c_portable(0, part);
      EXPECT_EQ(crc32c(0, part), expected) << size << " bytes at " << start;
      EXPECT_EQ(crc32c(crc32c(0, part.first(size / 3)), part.subspan(size / 3)), expected);
    }
  }
}

TEST(Crc32c, ZerosAreSkipped) {
  const std::vector<std::byte> zeros(70000, std::byte{0});
  for (const std::size_t count : {0UL, 1UL, 2UL, 7UL, 255UL, 4096UL, 69999UL}) {
    for (const std::uint32_t crc : {0U, 0xe3069283U, 0xffffffffU}) {
      EXPECT_EQ(crc32c_zeros(crc, count), crc32c(crc, std::span(zeros).first(count))) << count;
    }
  }
  // 2^40 + 3 zeros are 2^39 zeros, again 2^39 zeros, and 3 zeros.
  constexpr std::uint64_t kHalf = 1ULL << 39;
  EXPECT_EQ(crc32c_zeros(5, 2 * kHalf + 3), crc32c_zeros(crc32c_zeros(crc32c_zeros(5, kHalf), 3), kHalf));
}

// Three writers write interleaved parts of the data.
TEST(Crc32c, PartsMerge) {
  std::vector<std::byte> whole(1001), parts[3];
  for (auto& part : parts) part.resize(whole.size());
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    whole[i] = static_cast<std::byte>(state >> 24);
    parts[(state >> 8) % 3][i] = whole[i];
  }
  std::uint32_t crc = crc32c_zeros(0, whole.size());  // the checksum of only zeros
  for (const auto& part : parts) crc = crc32c_merge(crc, crc32c(0, part), whole.size());
  EXPECT_EQ(crc, crc32c(0, whole));
}

}  // namespace
}  // namespace primus
