// Counter-based random numbers: a draw is a pure function of (seed, purpose, step, sample, layer, index).
//
// There is no state between draws. Therefore checkpoints need no generator state, any thread may compute any
// part of a tensor, and recomputation draws the same dropout mask. The generator is Philox4x32-10 of Salmon,
// Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); tests check the authors'
// known-answer vectors.
//
// The scalar functions are constexpr and need only this header, so GPU kernels can call them. The functions
// at the end of this header fill ranges (random.cpp). These functions are vectorized and return identical
// bits on every CPU. For this, normal numbers use our own polynomials in double precision instead of libm.
//
// Thread-safe: all functions are pure.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace primus {

// Philox4x32-10: ten rounds over a 128-bit counter with a 64-bit key.
struct Philox {
  using Counter = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  static constexpr std::uint32_t kMultiplier0 = 0xD2511F53U, kMultiplier1 = 0xCD9E8D57U;
  static constexpr std::uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;
  static constexpr int kRounds = 10;

  static constexpr Counter block(Counter c, Key k) {
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t p0 = std::uint64_t{kMultiplier0} * c[0];
      const std::uint64_t p1 = std::uint64_t{kMultiplier1} * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
      k = {k[0] + kWeyl0, k[1] + kWeyl1};
    }
    return c;
  }
};

// The purpose of random numbers. Different purposes have independent draws, even with the same seed and
// position.
enum class RandomPurpose : std::uint32_t {
  kInit = 1,      // weight initialization: layer and sample are the halves of random_stream_id(name)
  kDropout = 2,   // masks inside the model
  kRouting = 3,   // jitter and forced balance of expert routers
  kData = 4,      // mock data, shuffles, masks over tokens
  kSampling = 5,  // next-token choice in generation: step = position
  kTest = 6,
};

// A stream of 2^34 numbers. `step`, `sample` and `layer` have 32 bits each. `sample` is the number of a
// sample within its step: a number within a long run could exceed 32 bits.
struct RandomStream {
  Philox::Key key{};
  std::uint32_t step = 0, sample = 0, layer = 0;

  constexpr RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint32_t step_id = 0,
                         std::uint32_t sample_id = 0, std::uint32_t layer_id = 0)
      : key(make_key(seed, purpose)), step(step_id), sample(sample_id), layer(layer_id) {}

  // Returns element `index` of the stream, 32 random bits. index < 2^34.
  constexpr std::uint32_t bits(std::uint64_t index) const { return quad(index / 4)[index % 4]; }

  // Returns the four elements 4 * block ... 4 * block + 3 at the cost of one element. block < 2^32.
  constexpr Philox::Counter quad(std::uint64_t block) const {
    return Philox::block({static_cast<std::uint32_t>(block), layer, sample, step}, key);
  }

  // Returns a uniform number in [0, 1), a multiple of 2^-24: exact in float, so it is not rounded up to 1.
  constexpr float uniform(std::uint64_t index) const { return to_uniform(bits(index)); }

  static constexpr float to_uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

  // Returns a uniform integer in [0, bound), bound > 0, by multiply-shift; the bias is below bound / 2^32.
  constexpr std::uint32_t below(std::uint64_t index, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((std::uint64_t{bits(index)} * bound) >> 32);
  }

 private:
  // SplitMix64's finalizer is a bijection: for the same purpose, different seeds have different keys. The
  // keys of adjacent seeds differ in about half of the bits.
  static constexpr Philox::Key make_key(std::uint64_t seed, RandomPurpose purpose) {
    std::uint64_t z = seed + 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(purpose);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
  }
};

// Hashes a name: 64-bit FNV-1a, then SplitMix64's mixing. The result does not depend on other names.
constexpr std::uint64_t random_stream_id(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBULL;
  return hash ^ (hash >> 31);
}

// out[i] = element first + i of the stream, uniform in [low, high); `high` itself occurs only through
// rounding. Splitting a range among threads gives the same bits as one call.
void fill_uniform(const RandomStream& stream, std::uint64_t first, std::span<float> out, float low = 0.0F,
                  float high = 1.0F);

// out[i] = mean + stddev * z, z standard normal (Box-Muller: elements 2j and 2j+1 are one pair). |z| <= 6.67.
void fill_normal(const RandomStream& stream, std::uint64_t first, std::span<float> out, float mean = 0.0F,
                 float stddev = 1.0F);

}  // namespace primus
