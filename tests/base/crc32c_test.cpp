#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/file.h"

namespace primus {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(0, {}), 0U);
  EXPECT_EQ(crc32c(0, as_bytes("123456789")), 0xe3069283U);
  const std::vector<std::byte> zeros(32, std::byte{0}), ones(32, std::byte{0xff});
  EXPECT_EQ(crc32c(0, zeros), 0x8a9136aaU);
  EXPECT_EQ(crc32c(0, ones), 0x62a8ab43U);
  EXPECT_EQ(crc32c_portable(0, as_bytes("123456789")), 0xe3069283U);
}

// Every length around the block sizes of the fast version, at odd addresses, whole and in two pieces.
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

}  // namespace
}  // namespace primus
