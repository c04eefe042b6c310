#include "base/random/random.h"

#include <algorithm>
#include <cmath>

#include "base/random/random_normal.h"

namespace primus {
namespace {

// Number of four-word blocks that are processed together. This number of blocks fills the widest vectors, and
// fits in the registers and the L1 cache.
constexpr std::size_t kLanes = 32;
constexpr std::size_t kBatch = 4 * kLanes;

#define PRIMUS_INLINE [[gnu::always_inline]] inline

// Computes the words of kLanes consecutive blocks: word w of block b goes to words[w][b].
PRIMUS_INLINE void philox_batch(const RandomStream& stream, std::uint64_t first_block,
                                std::uint32_t (&words)[4][kLanes]) {
  std::uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (std::size_t i = 0; i < kLanes; ++i) {
    words[0][i] = static_cast<std::uint32_t>(first_block + i);
    words[1][i] = stream.layer;
    words[2][i] = stream.sample;
    words[3][i] = stream.step;
  }
  for (int round = 0; round < Philox::kRounds; ++round) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t p0 = std::uint64_t{Philox::kMultiplier0} * words[0][i];
      const std::uint64_t p1 = std::uint64_t{Philox::kMultiplier1} * words[2][i];
      words[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1][i] ^ k0;
      words[1][i] = static_cast<std::uint32_t>(p1);
      words[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3][i] ^ k1;
      words[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += Philox::kWeyl0;
    k1 += Philox::kWeyl1;
  }
}

struct UniformBatch {
  float low, width;
  PRIMUS_INLINE void operator()(const std::uint32_t (&words)[4][kLanes], float (&out)[kBatch]) const {
    for (std::size_t i = 0; i < kLanes; ++i) {
      for (std::size_t w = 0; w < 4; ++w)
        out[4 * i + w] = low + width * RandomStream::to_uniform(words[w][i]);
    }
  }
};

// Computes pairs by Box-Muller: one random word gives the radius, and the next word the angle.
struct NormalBatch {
  double mean, stddev;
  PRIMUS_INLINE void operator()(const std::uint32_t (&words)[4][kLanes], float (&out)[kBatch]) const {
    double radius[kLanes];
    float x[kLanes], y[kLanes];
    for (std::size_t half = 0; half < 4; half += 2) {
      for (std::size_t i = 0; i < kLanes; ++i) radius[i] = -2.0 * log_unit(words[half][i]);
      // This loop is separate, because the compiler does not vectorize it: sqrt may set errno.
      for (std::size_t i = 0; i < kLanes; ++i) radius[i] = std::sqrt(radius[i]);
      for (std::size_t i = 0; i < kLanes; ++i) {
        const CirclePoint point = on_circle(words[half + 1][i]);
        x[i] = static_cast<float>(mean + stddev * (radius[i] * point.x));
        y[i] = static_cast<float>(mean + stddev * (radius[i] * point.y));
      }
      for (std::size_t i = 0; i < kLanes; ++i) {
        out[4 * i + half] = x[i];
        out[4 * i + half + 1] = y[i];
      }
    }
  }
};

template <class Batch>
PRIMUS_INLINE void fill(const RandomStream& stream, std::uint64_t first, std::span<float> out,
                        const Batch& make) {
  std::uint32_t words[4][kLanes];
  float batch[kBatch];
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first + done;
    philox_batch(stream, index / 4, words);
    make(words, batch);
    const std::size_t skip = index % 4;
    const std::size_t count = std::min(kBatch - skip, out.size() - done);
    std::copy_n(batch + skip, count, out.data() + done);
    done += count;
  }
}

// fill(), compiled for three instruction sets. The build forbids fused multiply-add, so all three
// round every operation identically.
template <class Batch>
[[gnu::target("avx512f,avx512dq,avx512vl")]] void fill_avx512(const RandomStream& stream, std::uint64_t first,
                                                              std::span<float> out, const Batch& make) {
  fill(stream, first, out, make);
}

template <class Batch>
[[gnu::target("avx2")]] void fill_avx2(const RandomStream& stream, std::uint64_t first, std::span<float> out,
                                       const Batch& make) {
  fill(stream, first, out, make);
}

template <class Batch>
void fill_baseline(const RandomStream& stream, std::uint64_t first, std::span<float> out, const Batch& make) {
  fill(stream, first, out, make);
}

template <class Batch>
void fill_best(const RandomStream& stream, std::uint64_t first, std::span<float> out, const Batch& make) {
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    fill_avx512(stream, first, out, make);
  } else if (__builtin_cpu_supports("avx2")) {
    fill_avx2(stream, first, out, make);
  } else {
    fill_baseline(stream, first, out, make);
  }
}

}  // namespace

void fill_uniform(const RandomStream& stream, std::uint64_t first, std::span<float> out, float low,
                  float high) {
  fill_best(stream, first, out, UniformBatch{low, high - low});
}

void fill_normal(const RandomStream& stream, std::uint64_t first, std::span<float> out, float mean,
                 float stddev) {
  fill_best(stream, first, out, NormalBatch{mean, stddev});
}

}  // namespace primus
