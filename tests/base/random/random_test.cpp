// Tests of random numbers: Philox, streams, and uniform and normal values.
#include "base/random/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>
#include <vector>

namespace primus {
namespace {

// Known answers published with Random123 (kat_vectors, philox 4x32 10).
TEST(Philox, KnownAnswers) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, {0, 0}),
            (Philox::Counter{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(Philox::block({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Philox::Counter{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(Philox::block({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
            (Philox::Counter{0xd16cfe09U, 0x94fdcceb, 0x5001e420U, 0x24126ea1U}));
  static_assert(Philox::block({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5U, "usable at compile time");
}

RandomStream stream_for_test(std::uint64_t seed = 1234, std::uint32_t step = 7, std::uint32_t sample = 3,
                             std::uint32_t layer = 11) {
  return {seed, RandomPurpose::kTest, step, sample, layer};
}

TEST(RandomStream, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> first;
  first.insert(stream_for_test().bits(0));
  first.insert(stream_for_test(1235).bits(0));
  first.insert(stream_for_test(1234, 8).bits(0));
  first.insert(stream_for_test(1234, 7, 4).bits(0));
  first.insert(stream_for_test(1234, 7, 3, 12).bits(0));
  first.insert(RandomStream(1234, RandomPurpose::kDropout, 7, 3, 11).bits(0));
  EXPECT_EQ(first.size(), 6U);
}

TEST(RandomStream, BelowReturnsLessThanItsLimit) {
  const RandomStream stream = stream_for_test();
  std::vector<int> seen(7);
  for (std::uint64_t i = 0; i < 7000; ++i) ++seen.at(stream.below(i, 7));
  // The expected count is 1000, with a standard deviation of 29.
  for (const int count : seen) EXPECT_NEAR(count, 1000, 150);
}

// Returns the FNV-1a hash of the values' bit patterns.
std::uint64_t hash(std::span<const float> values) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const float v : values) h = (h ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ULL;
  return h;
}

TEST(Fill, MatchesTheScalarStream) {
  const RandomStream stream = stream_for_test();
  std::vector<float> out(1000);
  fill_uniform(stream, 5, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], stream.uniform(5 + i));
    ASSERT_GE(out[i], 0.0F);
    ASSERT_LT(out[i], 1.0F);
  }
  std::vector<float> scaled(1000);
  fill_uniform(stream, 5, scaled, -2.0F, 2.0F);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(scaled[i], -2.0F + 4.0F * out[i]);
}

TEST(Fill, NormalIsBoxMuller) {
  const RandomStream stream = stream_for_test();
  std::vector<float> out(4096);
  fill_normal(stream, 0, out);
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log((stream.bits(i) + 1.0) * 0x1p-32));
    // fill_normal() shifts the angle by -pi/4, which keeps the distribution.
    const double angle = stream.bits(i + 1) * 0x1p-32 * 2.0 * std::numbers::pi - std::numbers::pi / 4;
    // The tolerance is half a unit in the last place of a float up to 8. The polynomials' error is 1e-12.
    ASSERT_NEAR(out[i], radius * std::cos(angle), 0x1p-22);
    ASSERT_NEAR(out[i + 1], radius * std::sin(angle), 0x1p-22);
  }
}

TEST(Fill, AnySplitGivesTheSameBits) {
  const RandomStream stream = stream_for_test();
  std::vector<float> whole(1531);
  fill_normal(stream, 3, whole, 0.5F, 0.02F);
  for (const std::size_t piece : {1UL, 2UL, 3UL, 127UL, 128UL, 129UL, 700UL}) {
    std::vector<float> parts(whole.size());
    for (std::size_t begin = 0; begin < parts.size(); begin += piece) {
      const std::size_t count = std::min(piece, parts.size() - begin);
      fill_normal(stream, 3 + begin, std::span(parts).subspan(begin, count), 0.5F, 0.02F);
    }
    ASSERT_EQ(hash(parts), hash(whole)) << "pieces of " << piece;
  }
}

TEST(Fill, BlockIndexUsesAllThirtyTwoBits) {
  const RandomStream stream = stream_for_test();
  const std::uint64_t far = (std::uint64_t{1} << 34) - 8;
  std::vector<float> out(8);
  fill_uniform(stream, far, out);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], stream.uniform(far + i));
}

// All CPUs give the same bits, whatever their vector width, so initial weights do not depend on the machine.
TEST(Fill, BitsAreFixedForAllTime) {
  std::vector<float> out(100'000);
  fill_normal(stream_for_test(), 0, out, 0.0F, 0.02F);
  EXPECT_EQ(hash(out), 13516735745266324657ULL);
  fill_uniform(stream_for_test(), 0, out, -1.0F, 1.0F);
  EXPECT_EQ(hash(out), 11968243429368018963ULL);
}

TEST(Fill, NormalHasItsMoments) {
  std::vector<float> out(1 << 20);
  fill_normal(stream_for_test(99), 0, out);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double z = out[i];
    m1 += z;
    m2 += z * z;
    m3 += z * z * z;
    m4 += z * z * z * z;
    if (i > 0) neighbours += z * out[i - 1];
  }
  const auto n = static_cast<double>(out.size());
  // Bounds are five standard errors: sqrt(var / n) with var = 1, 2, 15, 96, 1.
  EXPECT_NEAR(m1 / n, 0.0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(m2 / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(m3 / n, 0.0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(m4 / n, 3.0, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0.0, 5 * std::sqrt(1 / n));
}

}  // namespace
}  // namespace primus
