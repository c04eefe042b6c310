// Decays between the tokens of a chunk on the CPU, the decayed products of keys and queries with keys, and
// the gradients of these products. This file has the version with one gate per head; cpu_channel_gates.h has
// the version with a gate per channel.
//
// Strong gates cause no overflow, because decays are only multiplied and not divided by each other.
#pragma once

#include "turbo/attention/cpu_fp32_products.h"
#include "turbo/attention/cpu_geometry.h"
#include "turbo/attention/cpu_vectors.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kDeltaChunk = DeltaRuleShape::kChunk;

// A chunk's queries and keys, [tokens, width], and the transposed keys, [width, kDeltaChunk]. The transposed
// keys are zero after the chunk's last token. In queries and keys, columns from key_dim on are zero.
struct ChunkKeys {
  std::int64_t tokens, width;
  const float *q, *k, *transposed;
};

// Matrices [tokens, kDeltaChunk] of a chunk. A row of `read` has the products of a token's query with the
// keys of this token and of earlier tokens. A row of `write` has the products of a token's key with the keys
// of earlier tokens. The other elements of a row are zero, up to the number of tokens.
struct ChunkMatrices {
  float *read, *write;
};

// Sums of the gradients of a chunk's queries and keys, [tokens, width]. The gradient of a key has two parts.
// `looking` is the part from the key's row of the matrices, and `seen` is the part from the key's column.
struct ChunkGradients {
  float *q, *looking, *seen;
};

// One gate per head. Sums of gates are in double, so that a small difference of two large sums is accurate.
class HeadGates {
 public:
  HeadGates(Carver& carver, std::int64_t) : sum_(carver.take<double>(kDeltaChunk)) {}
  static std::int64_t columns(std::int64_t) { return 1; }

  // `g` points to the gate of the first token. `stride` is the number of elements between the gates of
  // consecutive tokens.
  void prepare(const float* g, std::int64_t stride, const ChunkKeys& chunk, std::int64_t) {
    double sum = 0;
    for (std::int64_t i = 0; i < chunk.tokens; ++i) sum_[i] = sum += static_cast<double>(g[i * stride]);
    last_ = sum;
  }
  // since_begin(): to = x · decay from the chunk's start to each token. until_end(): to = x · decay from each
  // token to the chunk's end.
  void since_begin(const ChunkKeys& chunk, const float* x, float* to) const {
    scale(chunk, x, to, [this](std::int64_t i) { return sum_[i]; });
  }
  void until_end(const ChunkKeys& chunk, const float* x, float* to) const {
    scale(chunk, x, to, [this](std::int64_t i) { return last_ - sum_[i]; });
  }
  float through(std::int64_t) const { return exp(static_cast<float>(last_)); }

  void matrices(const ChunkKeys& chunk, const ChunkMatrices& to) const {
    multiply(chunk.tokens, kDeltaChunk, chunk.width, {chunk.q, chunk.width, 1}, chunk.transposed, kDeltaChunk,
             to.read, kDeltaChunk);
    multiply(chunk.tokens, kDeltaChunk, chunk.width, {chunk.k, chunk.width, 1}, chunk.transposed, kDeltaChunk,
             to.write, kDeltaChunk);
    weigh(chunk, to);
  }
  // Adds the contributions of the gradients of both matrices to `to`; overwrites the matrices.
  void matrices_backward(const ChunkKeys& chunk, const ChunkMatrices& d, const ChunkGradients& to) const {
    weigh(chunk, d);
    const std::int64_t n = chunk.tokens, width = chunk.width;
    multiply_accumulate(n, width, n, {d.read, kDeltaChunk, 1}, chunk.k, width, to.q, width);
    multiply_accumulate(n, width, n, {d.write, kDeltaChunk, 1}, chunk.k, width, to.looking, width);
    multiply_accumulate(n, width, n, {d.read, 1, kDeltaChunk}, chunk.q, width, to.seen, width);
    multiply_accumulate(n, width, n, {d.write, 1, kDeltaChunk}, chunk.k, width, to.seen, width);
  }

 private:
  template <class Exponent>
  void scale(const ChunkKeys& chunk, const float* x, float* to, Exponent exponent) const {
    for (std::int64_t i = 0; i < chunk.tokens; ++i) {
      const float factor = exp(static_cast<float>(exponent(i)));
      const float* from = x + i * chunk.width;
      float* row = to + i * chunk.width;
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < chunk.width; ++c) row[c] = from[c] * factor;
    }
  }
  void weigh(const ChunkKeys& chunk, const ChunkMatrices& m) const {
    for (std::int64_t i = 0; i < chunk.tokens; ++i) {
      float *read = m.read + i * kDeltaChunk, *write = m.write + i * kDeltaChunk;
      const double own = sum_[i];
      PRIMUS_SIMD()
      for (std::int64_t j = 0; j < i; ++j) {
        const float decay = exp(static_cast<float>(own - sum_[j]));
        read[j] *= decay;
        write[j] *= decay;
      }
      std::fill(read + i + 1, read + chunk.tokens, 0.0F);
      std::fill(write + i, write + chunk.tokens, 0.0F);
    }
  }

  double* sum_;
  double last_ = 0;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
