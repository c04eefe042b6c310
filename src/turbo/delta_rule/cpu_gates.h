// What gates do between the tokens of a chunk, on the CPU: decays from token to token, and the matrices of
// keys and queries with keys that they weigh, with their gradients.
//
// Sums of gates are in double, because differences of large sums matter; only differences <= 0 are
// exponentiated.
#pragma once

#include "turbo/attention/cpu_fp32_products.h"
#include "turbo/attention/cpu_geometry.h"
#include "turbo/attention/cpu_vectors.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kDeltaChunk = DeltaRuleShape::kChunk;

// Rows of a chunk's queries and keys, [tokens, width], and the keys transposed, [width, kDeltaChunk], zero
// behind the chunk's tokens. Columns behind key_dim are zero.
struct ChunkKeys {
  std::int64_t tokens, width;
  const float *q, *k, *transposed;
};

// Matrices [tokens, kDeltaChunk] of a chunk: of a token's query, and of its key, with the keys of the tokens
// before it; `read` has the token itself, too. The rest of a row is zero as far as there are tokens.
struct ChunkMatrices {
  float *read, *write;
};

// Where gradients of a chunk's queries and keys are summed, [tokens, width]: of keys apart by whether the
// token looks at others, or is looked at.
struct ChunkGradients {
  float *q, *looking, *seen;
};

// One gate for a head.
class HeadGates {
 public:
  HeadGates(Carver& carver, std::int64_t) : sum_(carver.take<double>(kDeltaChunk)) {}
  static std::int64_t columns(std::int64_t) { return 1; }

  // g: of the first token; `stride` from token to token.
  void prepare(const float* g, std::int64_t stride, const ChunkKeys& chunk, std::int64_t) {
    double sum = 0;
    for (std::int64_t i = 0; i < chunk.tokens; ++i) sum_[i] = sum += static_cast<double>(g[i * stride]);
    last_ = sum;
  }
  // to = x · what is left, at each token, of what was there when the chunk began; or, when it ends, of what
  // is there at each token.
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
  // Adds to `to` what comes of the gradients of both matrices, which are written over.
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

// A gate for each channel. The matrices are no products of two factors, because a factor exp(-sum) would
// overflow. So the chunk is cut into strips: seen from the token in front of a strip, both what its tokens
// have left and what earlier tokens have left are <= 1; within a strip each pair is summed by itself.
class ChannelGates {
 public:
  static constexpr std::int64_t kStrip = 16;

  ChannelGates(Carver& carver, std::int64_t width)
      : width_(width),
        sum_(carver.take<double>(kDeltaChunk * width)),
        q_(carver.take<float>(kStrip * width)),
        k_(carver.take<float>(kStrip * width)),
        earlier_(carver.take<float>(kDeltaChunk * width)),
        transposed_(carver.take<float>(2 * kStrip * width)),
        product_(carver.take<float>(kDeltaChunk * std::max(2 * kStrip, width))) {}
  static std::int64_t columns(std::int64_t key_dim) { return key_dim; }

  void prepare(const float* g, std::int64_t stride, const ChunkKeys& chunk, std::int64_t key_dim) {
    std::fill_n(sum_, chunk.tokens * width_, 0.0);
    for (std::int64_t i = 0; i < chunk.tokens; ++i) {
      double* own = sum_ + i * width_;
      const double* before = i > 0 ? own - width_ : nullptr;
      const float* gates = g + i * stride;
      for (std::int64_t c = 0; c < key_dim; ++c)
        own[c] = static_cast<double>(gates[c]) + (before ? before[c] : 0.0);
    }
    last_ = sum_ + (chunk.tokens - 1) * width_;
  }
  void since_begin(const ChunkKeys& chunk, const float* x, float* to) const {
    for (std::int64_t i = 0; i < chunk.tokens; ++i) decayed(row(i), nullptr, x + i * width_, to + i * width_);
  }
  void until_end(const ChunkKeys& chunk, const float* x, float* to) const {
    for (std::int64_t i = 0; i < chunk.tokens; ++i) decayed(last_, row(i), x + i * width_, to + i * width_);
  }
  float through(std::int64_t c) const { return exp(static_cast<float>(last_[c])); }

  void matrices(const ChunkKeys& chunk, const ChunkMatrices& to) const {
    for (std::int64_t begin = 0; begin < chunk.tokens; begin += kStrip) {
      const std::int64_t count = std::min(kStrip, chunk.tokens - begin);
      if (begin > 0) {
        look_from(chunk, begin, count);
        std::fill_n(transposed_, 2 * kStrip * width_, 0.0F);
        transpose(q_, width_, count, width_, transposed_, 2 * kStrip);
        transpose(k_, width_, count, width_, transposed_ + kStrip, 2 * kStrip);
        multiply(begin, 2 * kStrip, width_, {earlier_, width_, 1}, transposed_, 2 * kStrip, product_,
                 2 * kStrip);
        transpose(product_, 2 * kStrip, begin, count, to.read + begin * kDeltaChunk, kDeltaChunk);
        transpose(product_ + kStrip, 2 * kStrip, begin, count, to.write + begin * kDeltaChunk, kDeltaChunk);
      }
      for (std::int64_t i = begin; i < begin + count; ++i) {
        float *read = to.read + i * kDeltaChunk, *write = to.write + i * kDeltaChunk;
        const float *q = chunk.q + i * width_, *k = chunk.k + i * width_;
        for (std::int64_t j = begin; j <= i; ++j) {
          const float* other = chunk.k + j * width_;
          const double *own_sum = row(i), *other_sum = row(j);
          float with_q = 0, with_k = 0;
          PRIMUS_SIMD(reduction(+ : with_q, with_k))
          for (std::int64_t c = 0; c < width_; ++c) {
            const float seen = other[c] * exp(static_cast<float>(own_sum[c] - other_sum[c]));
            with_q += q[c] * seen;
            with_k += k[c] * seen;
          }
          read[j] = with_q;
          write[j] = with_k;
        }
        std::fill(read + i + 1, read + chunk.tokens, 0.0F);
        std::fill(write + i, write + chunk.tokens, 0.0F);
      }
    }
  }

  void matrices_backward(const ChunkKeys& chunk, const ChunkMatrices& d, const ChunkGradients& to) const {
    for (std::int64_t begin = 0; begin < chunk.tokens; begin += kStrip) {
      const std::int64_t count = std::min(kStrip, chunk.tokens - begin);
      if (begin > 0) earlier_backward(chunk, begin, count, d, to);
      for (std::int64_t i = begin; i < begin + count; ++i) {
        const float *q = chunk.q + i * width_, *k = chunk.k + i * width_;
        float *d_q = to.q + i * width_, *d_k = to.looking + i * width_;
        for (std::int64_t j = begin; j <= i; ++j) {
          const float read = d.read[i * kDeltaChunk + j];
          const float write = j < i ? d.write[i * kDeltaChunk + j] : 0.0F;
          const float* other = chunk.k + j * width_;
          const double *own_sum = row(i), *other_sum = row(j);
          float* d_other = to.seen + j * width_;
          PRIMUS_SIMD()
          for (std::int64_t c = 0; c < width_; ++c) {
            const float decay = exp(static_cast<float>(own_sum[c] - other_sum[c]));
            const float seen = other[c] * decay;
            d_q[c] = multiply_add(read, seen, d_q[c]);
            d_k[c] = multiply_add(write, seen, d_k[c]);
            d_other[c] = multiply_add(multiply_add(read, q[c], write * k[c]), decay, d_other[c]);
          }
        }
      }
    }
  }

 private:
  const double* row(std::int64_t token) const { return sum_ + token * width_; }

  // to = x · exp(later - earlier), or exp(later).
  void decayed(const double* later, const double* earlier, const float* x, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < width_; ++c)
      to[c] = x[c] * exp(static_cast<float>(later[c] - (earlier ? earlier[c] : 0.0)));
  }
  void add_decayed(const double* later, const double* earlier, const float* x, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < width_; ++c)
      to[c] = multiply_add(x[c], exp(static_cast<float>(later[c] - earlier[c])), to[c]);
  }
  // Queries and keys of a strip, and all earlier keys, as the token in front of the strip sees them.
  void look_from(const ChunkKeys& chunk, std::int64_t begin, std::int64_t count) const {
    const double* here = row(begin - 1);
    for (std::int64_t i = 0; i < count; ++i) {
      decayed(row(begin + i), here, chunk.q + (begin + i) * width_, q_ + i * width_);
      decayed(row(begin + i), here, chunk.k + (begin + i) * width_, k_ + i * width_);
    }
    for (std::int64_t j = 0; j < begin; ++j)
      decayed(here, row(j), chunk.k + j * width_, earlier_ + j * width_);
  }
  // Of a strip with all earlier tokens.
  void earlier_backward(const ChunkKeys& chunk, std::int64_t begin, std::int64_t count,
                        const ChunkMatrices& d, const ChunkGradients& to) const {
    const double* here = row(begin - 1);
    const float *read = d.read + begin * kDeltaChunk, *write = d.write + begin * kDeltaChunk;
    look_from(chunk, begin, count);
    multiply(begin, width_, count, {read, 1, kDeltaChunk}, q_, width_, product_, width_);
    multiply_accumulate(begin, width_, count, {write, 1, kDeltaChunk}, k_, width_, product_, width_);
    for (std::int64_t j = 0; j < begin; ++j)
      add_decayed(here, row(j), product_ + j * width_, to.seen + j * width_);
    const auto looking = [&](const float* gradient, float* target) {
      multiply(count, width_, begin, {gradient, kDeltaChunk, 1}, earlier_, width_, product_, width_);
      for (std::int64_t i = 0; i < count; ++i)
        add_decayed(row(begin + i), here, product_ + i * width_, target + (begin + i) * width_);
    };
    looking(read, to.q);
    looking(write, to.looking);
  }

  std::int64_t width_;
  double* sum_;  // [tokens, width]
  const double* last_ = nullptr;
  float *q_, *k_;      // [kStrip, width]
  float* earlier_;     // [tokens, width]
  float* transposed_;  // [width, 2 * kStrip]
  float* product_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
