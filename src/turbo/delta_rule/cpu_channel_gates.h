// Gates of the delta rule on the CPU (cpu_gates.h), with one gate per channel.
#pragma once

#include "turbo/delta_rule/cpu_gates.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// One gate per channel. One factorization of the decays between tokens for the complete chunk is not
// possible, because a factor exp(-sum) would overflow. Therefore the chunk is divided into strips. Each decay
// is a product of two factors <= 1: from the earlier token to the token before the strip, and from there to a
// token of the strip. Pairs within a strip are summed one by one. exp is computed only for the gates of
// single tokens; decays over several tokens are products of these results.
class ChannelGates {
 public:
  static constexpr std::int64_t kStrip = 16, kStrips = kDeltaChunk / kStrip;

  ChannelGates(Carver& carver, std::int64_t width)
      : width_(width),
        decays_(rows(carver)),
        since_strip_(rows(carver)),
        until_strip_(rows(carver)),
        since_begin_(rows(carver)),
        until_end_(rows(carver)),
        strips_(carver.take<float>(kStrips * width)),
        through_(carver.take<float>(width)),
        q_(carver.take<float>(kStrip * width)),
        k_(carver.take<float>(kStrip * width)),
        earlier_(rows(carver)),
        transposed_(carver.take<float>(2 * kStrip * width)),
        product_(carver.take<float>(kDeltaChunk * std::max(2 * kStrip, width))),
        running_(carver.take<float>(width)) {}
  static std::int64_t columns(std::int64_t key_dim) { return key_dim; }

  void prepare(const float* g, std::int64_t stride, const ChunkKeys& chunk, std::int64_t key_dim) {
    tokens_ = chunk.tokens;
    for (std::int64_t i = 0; i < tokens_; ++i) {
      const float* gates = g + i * stride;
      float* decays = decays_ + i * width_;
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < key_dim; ++c) decays[c] = exp(gates[c]);
      std::fill(decays + key_dim, decays + width_, 1.0F);
    }
    std::fill_n(through_, width_, 1.0F);
    for (std::int64_t begin = 0; begin < tokens_; begin += kStrip) {
      const std::int64_t end = std::min(begin + kStrip, tokens_);
      float* const strip = strips_ + begin / kStrip * width_;
      std::fill_n(strip, width_, 1.0F);
      for (std::int64_t i = begin; i < end; ++i) {
        times(strip, decays_ + i * width_, strip);
        std::copy_n(strip, width_, since_strip_ + i * width_);
        times(strip, through_, since_begin_ + i * width_);
      }
      times(through_, strip, through_);
      std::fill_n(until_strip_ + (end - 1) * width_, width_, 1.0F);
      for (std::int64_t i = end - 1; i > begin; --i)
        times(until_strip_ + i * width_, decays_ + i * width_, until_strip_ + (i - 1) * width_);
    }
    std::fill_n(running_, width_, 1.0F);
    for (std::int64_t begin = (tokens_ - 1) / kStrip * kStrip; begin >= 0; begin -= kStrip) {
      for (std::int64_t i = begin; i < std::min(begin + kStrip, tokens_); ++i)
        times(until_strip_ + i * width_, running_, until_end_ + i * width_);
      times(running_, strips_ + begin / kStrip * width_, running_);
    }
  }
  void since_begin(const ChunkKeys&, const float* x, float* to) const { times_rows(x, since_begin_, to); }
  void until_end(const ChunkKeys&, const float* x, float* to) const { times_rows(x, until_end_, to); }
  float through(std::int64_t c) const { return through_[c]; }

  void matrices(const ChunkKeys& chunk, const ChunkMatrices& to) const {
    for (std::int64_t begin = 0; begin < tokens_; begin += kStrip) {
      const std::int64_t end = std::min(begin + kStrip, tokens_), count = end - begin;
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
      for (std::int64_t j = begin; j < end; ++j) {
        std::copy_n(chunk.k + j * width_, width_, running_);
        for (std::int64_t i = j; i < end; ++i) {
          if (i > j) times(running_, decays_ + i * width_, running_);
          to.read[i * kDeltaChunk + j] = product(chunk.q + i * width_);
          to.write[i * kDeltaChunk + j] = product(chunk.k + i * width_);
        }
      }
      for (std::int64_t i = begin; i < end; ++i) {
        std::fill(to.read + i * kDeltaChunk + i + 1, to.read + i * kDeltaChunk + tokens_, 0.0F);
        std::fill(to.write + i * kDeltaChunk + i, to.write + i * kDeltaChunk + tokens_, 0.0F);
      }
    }
  }

  void matrices_backward(const ChunkKeys& chunk, const ChunkMatrices& d, const ChunkGradients& to) const {
    for (std::int64_t begin = 0; begin < tokens_; begin += kStrip) {
      const std::int64_t end = std::min(begin + kStrip, tokens_);
      if (begin > 0) earlier_backward(chunk, begin, end - begin, d, to);
      for (std::int64_t j = begin; j < end; ++j) {
        const float* const other = chunk.k + j * width_;
        float* const d_other = to.seen + j * width_;
        std::fill_n(running_, width_, 1.0F);
        for (std::int64_t i = j; i < end; ++i) {
          if (i > j) times(running_, decays_ + i * width_, running_);
          const float read = d.read[i * kDeltaChunk + j];
          const float write = j < i ? d.write[i * kDeltaChunk + j] : 0.0F;
          const float *q = chunk.q + i * width_, *k = chunk.k + i * width_, *decay = running_;
          float *d_q = to.q + i * width_, *d_k = to.looking + i * width_;
          PRIMUS_SIMD()
          for (std::int64_t c = 0; c < width_; ++c) {
            const float seen = other[c] * decay[c];
            d_q[c] = multiply_add(read, seen, d_q[c]);
            d_k[c] = multiply_add(write, seen, d_k[c]);
            d_other[c] = multiply_add(multiply_add(read, q[c], write * k[c]), decay[c], d_other[c]);
          }
        }
      }
    }
  }

 private:
  float* rows(Carver& carver) const { return carver.take<float>(kDeltaChunk * width_); }
  void times(const float* a, const float* b, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < width_; ++c) to[c] = a[c] * b[c];
  }
  void times_rows(const float* a, const float* b, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t e = 0; e < tokens_ * width_; ++e) to[e] = a[e] * b[e];
  }
  void add_times(const float* a, const float* b, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < width_; ++c) to[c] = multiply_add(a[c], b[c], to[c]);
  }
  // Returns the product of a row and the key with its current decay.
  float product(const float* row) const {
    const float* const seen = running_;
    return sum_terms(width_, [=](std::int64_t c) { return row[c] * seen[c]; });
  }
  // Calls body(token, decay from the token to the start of the strip) for all tokens before the strip.
  template <class Body>
  void for_each_earlier(std::int64_t begin, Body body) const {
    std::fill_n(running_, width_, 1.0F);
    for (std::int64_t strip = begin - kStrip; strip >= 0; strip -= kStrip) {
      for (std::int64_t j = strip; j < strip + kStrip; ++j) {
        times(until_strip_ + j * width_, running_, transposed_);
        body(j, transposed_);
      }
      times(running_, strips_ + strip / kStrip * width_, running_);
    }
  }
  // Computes the queries and keys of a strip, and all earlier keys, with their decays relative to the token
  // before the strip.
  void look_from(const ChunkKeys& chunk, std::int64_t begin, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const left = since_strip_ + (begin + i) * width_;
      times(chunk.q + (begin + i) * width_, left, q_ + i * width_);
      times(chunk.k + (begin + i) * width_, left, k_ + i * width_);
    }
    for_each_earlier(begin, [&](std::int64_t j, const float* left) {
      times(chunk.k + j * width_, left, earlier_ + j * width_);
    });
  }
  // Computes the gradients of the products of a strip with all earlier tokens.
  void earlier_backward(const ChunkKeys& chunk, std::int64_t begin, std::int64_t count,
                        const ChunkMatrices& d, const ChunkGradients& to) const {
    const float *read = d.read + begin * kDeltaChunk, *write = d.write + begin * kDeltaChunk;
    look_from(chunk, begin, count);
    multiply(begin, width_, count, {read, 1, kDeltaChunk}, q_, width_, product_, width_);
    multiply_accumulate(begin, width_, count, {write, 1, kDeltaChunk}, k_, width_, product_, width_);
    for_each_earlier(begin, [&](std::int64_t j, const float* left) {
      add_times(product_ + j * width_, left, to.seen + j * width_);
    });
    const auto looking = [&](const float* gradient, float* target) {
      multiply(count, width_, begin, {gradient, kDeltaChunk, 1}, earlier_, width_, product_, width_);
      for (std::int64_t i = 0; i < count; ++i)
        add_times(product_ + i * width_, since_strip_ + (begin + i) * width_, target + (begin + i) * width_);
    };
    looking(read, to.q);
    looking(write, to.looking);
  }

  std::int64_t width_, tokens_ = 0;
  float* decays_;  // [tokens, width]: the decay of each token
  // [tokens, width]: decay from the strip's begin to a token, and from a token to the strip's end.
  float *since_strip_, *until_strip_;
  float *since_begin_, *until_end_;  // [tokens, width]: decay from the chunk's begin to a token, and from a
                                     // token to the chunk's end
  // strips_: [kStrips, width], decay over each strip; through_: [width], decay over the chunk.
  float *strips_, *through_;
  float *q_, *k_;      // [kStrip, width]
  float* earlier_;     // [tokens, width]
  float* transposed_;  // [width, 2 * kStrip]
  float *product_, *running_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
