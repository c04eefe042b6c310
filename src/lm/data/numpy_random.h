// NumPy's random number generators, reproduced bit for bit for Megatron's sample order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace primus::data {

// numpy.random.RandomState(seed): the Mersenne Twister with NumPy's legacy bounded integers and shuffle.
class RandomState {
 public:
  explicit RandomState(std::uint32_t seed) : engine_(seed) {}

  // Returns a uniform integer in [0, max], by masking and rejection; draws no random number if max = 0.
  std::uint64_t interval(std::uint64_t max) {
    if (max == 0) return 0;
    std::uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    std::uint64_t value;
    do {
      const std::uint64_t high = max > UINT32_MAX ? engine_() : 0;
      value = (high << 32 | engine_()) & mask;
    } while (value > max);
    return value;
  }

  // Shuffles by the method of Fisher and Yates, beginning with the last element. Draws the partners of
  // several elements in advance, so that the CPU loads them at the same time: arrays are often larger than
  // the cache.
  template <class T>
  void shuffle(std::span<T> items) {
    constexpr std::size_t kAhead = 64;
    std::array<std::size_t, kAhead> partners;
    for (std::size_t end = items.size(); end > 1;) {
      const std::size_t count = std::min(kAhead, end - 1);
      for (std::size_t k = 0; k < count; ++k) {
        partners[k] = interval(end - 1 - k);
        __builtin_prefetch(&items[partners[k]], 1);
      }
      for (std::size_t k = 0; k < count; ++k) std::swap(items[end - 1 - k], items[partners[k]]);
      end -= count;
    }
  }

 private:
  std::mt19937 engine_;
};

// numpy.random.default_rng(seed) for seed < 2^32: PCG64 (XSL-RR 128/64), seeded with SeedSequence.
class Generator {
 public:
  explicit Generator(std::uint32_t seed);

  std::uint64_t next64();
  // Returns 32 bits. Each 64-bit draw gives two values, the low half first.
  std::uint32_t next32();
  // Returns NumPy's integers(low, high) for 32 bits (Lemire's method). Requires low < high.
  std::int32_t integer(std::int32_t low, std::int32_t high);

 private:
  __extension__ using uint128 = unsigned __int128;
  void step();
  uint128 state_ = 0, increment_ = 0;
  std::uint32_t kept_ = 0;
  bool has_kept_ = false;
};

// Returns numpy.sum(values), which sums pairwise. Normalized weights are then bitwise equal to NumPy's.
double pairwise_sum(std::span<const double> values);

}  // namespace primus::data
