#include "lm/data/numpy_random.h"

#include <array>

namespace primus::data {

namespace {

// Returns SeedSequence(entropy).generate_state(4, uint64) for one 32-bit word of entropy. Hashes and mixes a
// pool of four words (O'Neill's seed_seq_fe with NumPy's constants).
std::array<std::uint64_t, 4> seed_state(std::uint32_t entropy) {
  constexpr std::uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875, kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
  constexpr std::uint32_t kMixL = 0xca01f9dd, kMixR = 0x4973f715;
  std::uint32_t hash = kInitA;
  const auto hashed = [&hash](std::uint32_t value) {
    value ^= hash;
    hash *= kMultA;
    value *= hash;
    return value ^ value >> 16;
  };
  const auto mix = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t result = kMixL * x - kMixR * y;
    return result ^ result >> 16;
  };
  std::array<std::uint32_t, 4> pool;
  for (std::size_t i = 0; i < 4; ++i) pool[i] = hashed(i == 0 ? entropy : 0);
  for (std::size_t source = 0; source < 4; ++source) {
    for (std::size_t target = 0; target < 4; ++target) {
      if (source != target) pool[target] = mix(pool[target], hashed(pool[source]));
    }
  }
  std::array<std::uint32_t, 8> words;
  hash = kInitB;
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint32_t value = pool[i % 4] ^ hash;
    hash *= kMultB;
    value *= hash;
    words[i] = value ^ value >> 16;
  }
  std::array<std::uint64_t, 4> state;
  for (std::size_t i = 0; i < 4; ++i) state[i] = words[2 * i] | std::uint64_t{words[2 * i + 1]} << 32;
  return state;
}

}  // namespace

Generator::Generator(std::uint32_t seed) {
  const auto words = seed_state(seed);
  const auto initial = static_cast<uint128>(words[0]) << 64 | words[1];
  const auto sequence = static_cast<uint128>(words[2]) << 64 | words[3];
  increment_ = sequence << 1 | 1;
  step();
  state_ += initial;
  step();
}

void Generator::step() {
  constexpr auto kMultiplier = static_cast<uint128>(2549297995355413924u) << 64 | 4865540595714422341u;
  state_ = state_ * kMultiplier + increment_;
}

std::uint64_t Generator::next64() {
  step();
  const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  const int rotation = static_cast<int>(state_ >> 122);
  return rotation == 0 ? folded : folded >> rotation | folded << (64 - rotation);
}

std::uint32_t Generator::next32() {
  if (has_kept_) {
    has_kept_ = false;
    return kept_;
  }
  const std::uint64_t both = next64();
  kept_ = static_cast<std::uint32_t>(both >> 32);
  has_kept_ = true;
  return static_cast<std::uint32_t>(both);
}

std::int32_t Generator::integer(std::int32_t low, std::int32_t high) {
  const auto range = static_cast<std::uint32_t>(high - low);
  std::uint64_t product = std::uint64_t{next32()} * range;
  if (static_cast<std::uint32_t>(product) < range) {
    const std::uint32_t threshold = (0u - range) % range;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next32()} * range;
  }
  return low + static_cast<std::int32_t>(product >> 32);
}

double pairwise_sum(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (n <= 128) {
    std::array<double, 8> r;
    for (std::size_t i = 0; i < 8; ++i) r[i] = values[i];
    std::size_t i = 8;
    for (; i + 8 <= n; i += 8) {
      for (std::size_t j = 0; j < 8; ++j) r[j] += values[i + j];
    }
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; ++i) sum += values[i];
    return sum;
  }
  const std::size_t half = n / 2 - n / 2 % 8;
  return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
}

}  // namespace primus::data
