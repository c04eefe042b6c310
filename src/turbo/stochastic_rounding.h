// Stochastic rounding from fp32 to bf16: rounds up or down at random, so that the expected value is exact. A
// running average may change by less than half a unit in the last place per step. Stochastic rounding
// preserves such changes on average; rounding to nearest would lose them (Gupta et al., "Deep learning with
// limited numerical precision", 2015). Used for optimizer moments.
//
// The random bits are a function of (stream, step, element), so results do not depend on threads, devices or
// shards. Two calls of a 32-bit mixing function compute the random bits. These calls do not slow down a
// memory-bound kernel. For sampling, use base/random/random.h instead.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/bfloat16.h"

namespace primus::turbo {

class RoundingBits {
 public:
  constexpr RoundingBits(std::uint64_t stream, std::uint64_t step) {
    std::uint64_t z = stream + 0x9E3779B97F4A7C15ULL * step;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    low_ = static_cast<std::uint32_t>(z);
    high_ = static_cast<std::uint32_t>(z >> 32);
  }
  // Returns 32 random bits of an element: enough to round two numbers.
  constexpr std::uint32_t of(std::int64_t element) const {
    const auto index = static_cast<std::uint64_t>(element);
    const std::uint32_t first = mixed(static_cast<std::uint32_t>(index) ^ low_);
    return mixed(first + static_cast<std::uint32_t>(index >> 32) * 0x9E3779B9U + high_);
  }

 private:
  // A bijection with full avalanche: changing any bit of the argument changes each bit of the result with
  // probability one half.
  static constexpr std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x ^ (x >> 16);
  }

  std::uint32_t low_ = 0, high_ = 0;
};

// `random` holds 16 random bits. Infinities stay infinite and NaN stays NaN.
constexpr BFloat16 round_at_random(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  constexpr std::uint32_t kExponent = 0x7F800000U;
  const bool finite = (bits & kExponent) != kExponent;
  const std::uint32_t rounded =
      finite ? bits + (random & 0xFFFFU) : bits | ((bits & 0x7FFFFFU) != 0 ? 0x400000U : 0U);
  BFloat16 result;
  result.bits = static_cast<std::uint16_t>(rounded >> 16);
  return result;
}

}  // namespace primus::turbo
