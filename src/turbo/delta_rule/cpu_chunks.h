// Computes one chunk of the delta rule on the CPU from the chunk's inputs and the state before the chunk.
// Matrices are in fp32, and their rows are padded with zeros to full vectors.
#pragma once

#include <cmath>

#include "turbo/delta_rule/cpu_channel_gates.h"
#include "turbo/delta_rule/cpu_gates.h"
#include "turbo/delta_rule/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

struct DeltaSizes {
  explicit DeltaSizes(const DeltaRuleShape& shape)
      : s(shape),
        key_width(round_up(s.key_dim, kFp32Lanes)),
        value_width(round_up(s.value_dim, kFp32Lanes)),
        group(s.value_heads / s.key_heads) {}
  std::int64_t state() const { return key_width * value_width; }
  // Returns the max. number of chunks that do not begin a document: each such chunk follows a full chunk of
  // its document.
  std::int64_t inner_chunks() const { return s.sequence / kDeltaChunk; }

  DeltaRuleShape s;
  std::int64_t key_width, value_width, group;
};

// Queries and keys of one key head in a chunk.
class KeysOfChunk {
 public:
  KeysOfChunk(Carver& carver, const DeltaSizes& sizes)
      : sizes_(sizes),
        q_(carver.take<float>(kDeltaChunk * sizes.key_width)),
        k_(carver.take<float>(kDeltaChunk * sizes.key_width)),
        transposed_(carver.take<float>(kDeltaChunk * sizes.key_width)),
        q_factors_(carver.take<float>(kDeltaChunk)),
        k_factors_(carver.take<float>(kDeltaChunk)) {}

  // `row` points to the head's query at the first token of the chunk.
  template <class T>
  void load(const T* row, std::int64_t tokens) {
    const DeltaRuleShape& s = sizes_.s;
    load_rows(row, s.width(), tokens, s.key_dim, q_, sizes_.key_width, tokens);
    load_rows(row + s.k_column(), s.width(), tokens, s.key_dim, k_, sizes_.key_width, tokens);
    if (s.normalise) {
      normalise(tokens, q_, q_factors_);
      normalise(tokens, k_, k_factors_);
    }
    std::fill_n(transposed_, kDeltaChunk * sizes_.key_width, 0.0F);
    transpose(k_, sizes_.key_width, tokens, sizes_.key_width, transposed_, kDeltaChunk);
    tokens_ = tokens;
  }
  ChunkKeys keys() const { return {tokens_, sizes_.key_width, q_, k_, transposed_}; }

  // Converts the gradients of the normalised queries and keys, [tokens, key_width], to gradients of the input
  // rows.
  template <class T>
  void store_gradients(float* d_q, float* d_k, T* row) const {
    const DeltaRuleShape& s = sizes_.s;
    if (s.normalise) {
      normalise_backward(q_, q_factors_, d_q);
      normalise_backward(k_, k_factors_, d_k);
    }
    store_rows(d_q, sizes_.key_width, tokens_, s.key_dim, row, s.width());
    store_rows(d_k, sizes_.key_width, tokens_, s.key_dim, row + s.k_column(), s.width());
  }

 private:
  void normalise(std::int64_t tokens, float* rows, float* factors) const {
    for (std::int64_t i = 0; i < tokens; ++i) {
      float* row = rows + i * sizes_.key_width;
      const float square = sum_terms(sizes_.key_width, [=](std::int64_t c) { return row[c] * row[c]; });
      factors[i] = unit_factor(square, sizes_.s.epsilon);
      const float factor = factors[i];
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < sizes_.key_width; ++c) row[c] *= factor;
    }
  }
  void normalise_backward(const float* rows, const float* factors, float* gradients) const {
    for (std::int64_t i = 0; i < tokens_; ++i) {
      const float* row = rows + i * sizes_.key_width;
      float* gradient = gradients + i * sizes_.key_width;
      const float along = sum_terms(sizes_.key_width, [=](std::int64_t c) { return row[c] * gradient[c]; });
      const float factor = factors[i];
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < sizes_.key_width; ++c)
        gradient[c] = factor * multiply_add(-along, row[c], gradient[c]);
    }
  }

  const DeltaSizes& sizes_;
  std::int64_t tokens_ = 0;
  float *q_, *k_;      // [tokens, key_width]
  float* transposed_;  // [key_width, kDeltaChunk]
  float *q_factors_, *k_factors_;
};

// Computes one value head, given the keys of its key head.
template <class Gates>
class DeltaChunk {
 public:
  DeltaChunk(Carver& carver, const DeltaSizes& sizes)
      : sizes_(sizes),
        gates_(carver, sizes.key_width),
        beta_(carver.take<float>(kDeltaChunk)),
        key_since_(keys(carver)),
        key_until_(keys(carver)),
        query_since_(keys(carver)),
        matrices_{carver.take<float>(kDeltaChunk * kDeltaChunk),
                  carver.take<float>(kDeltaChunk * kDeltaChunk)},
        error_(values(carver)),
        u_(values(carver)),
        rows_(values(carver)) {}

  // Loads the inputs of value head `head`; g and beta start at the chunk's first token.
  template <class T>
  void load(const ChunkKeys& keys, const T* v, const float* g, const float* beta, std::int64_t head) {
    const DeltaRuleShape& s = sizes_.s;
    keys_ = keys;
    gates_.prepare(g + head * Gates::columns(s.key_dim), s.gates(), keys, s.key_dim);
    for (std::int64_t i = 0; i < keys.tokens; ++i) beta_[i] = beta[i * s.value_heads + head];
    load_rows(v + head * s.value_dim, s.width(), keys.tokens, s.value_dim, error_, sizes_.value_width,
              keys.tokens);
    gates_.since_begin(keys, keys.k, key_since_);
    gates_.until_end(keys, keys.k, key_until_);
    gates_.matrices(keys, matrices_);
  }

  // Computes U and the errors from the state before the chunk. If `state` is null, this state is zero.
  void solve(const float* state) {
    const std::int64_t n = keys_.tokens, width = sizes_.value_width;
    if (state) {
      multiply(n, width, sizes_.key_width, {key_since_, keys_.width, 1}, state, width, u_, width);
      for (std::int64_t i = 0; i < n * width; ++i) error_[i] -= u_[i];
    }
    // Until the end of the loop, u_ holds -U.
    for (std::int64_t begin = 0; begin < n; begin += kStrip) {
      const std::int64_t end = std::min(begin + kStrip, n);
      const float* write = matrices_.write + begin * kDeltaChunk;
      multiply_accumulate(end - begin, width, begin, {write, kDeltaChunk, 1}, u_, width,
                          error_ + begin * width, width);
      for (std::int64_t i = begin; i < end; ++i) {
        float* error = error_ + i * width;
        for (std::int64_t j = begin; j < i; ++j)
          add(matrices_.write[i * kDeltaChunk + j], u_ + j * width, error);
        for (std::int64_t c = 0; c < width; ++c) u_[i * width + c] = -beta_[i] * error[c];
      }
    }
    for (std::int64_t i = 0; i < n * width; ++i) u_[i] = -u_[i];
  }

  // Computes the state after the chunk from the state before the chunk. If `first` is true, the state before
  // is zero.
  void advance(float* state, bool first) const {
    const std::int64_t width = sizes_.value_width;
    if (first) {
      multiply(sizes_.key_width, width, keys_.tokens, {key_until_, 1, keys_.width}, u_, width, state, width);
      return;
    }
    fade(state);
    multiply_accumulate(sizes_.key_width, width, keys_.tokens, {key_until_, 1, keys_.width}, u_, width, state,
                        width);
  }

  template <class T>
  void read(const float* state, T* out, std::int64_t head) {
    const DeltaRuleShape& s = sizes_.s;
    const std::int64_t n = keys_.tokens, width = sizes_.value_width;
    multiply(n, width, n, {matrices_.read, kDeltaChunk, 1}, u_, width, rows_, width);
    if (state) {
      gates_.since_begin(keys_, keys_.q, query_since_);
      multiply_accumulate(n, width, sizes_.key_width, {query_since_, keys_.width, 1}, state, width, rows_,
                          width);
    }
    for (std::int64_t i = 0; i < n * width; ++i) rows_[i] *= s.scale;
    store_rows(rows_, width, n, s.value_dim, out + head * s.value_dim, s.out_width());
  }

 protected:
  static constexpr std::int64_t kStrip = 16;  // tokens per strip; strips are solved one after another

  float* keys(Carver& carver) const { return carver.take<float>(kDeltaChunk * sizes_.key_width); }
  float* values(Carver& carver) const { return carver.take<float>(kDeltaChunk * sizes_.value_width); }
  // to += factor · x, for rows of values.
  void add(float factor, const float* x, float* to) const {
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < sizes_.value_width; ++c) to[c] = multiply_add(factor, x[c], to[c]);
  }
  void fade(float* state) const {
    for (std::int64_t c = 0; c < sizes_.key_width; ++c) {
      const float left = gates_.through(c);
      float* row = state + c * sizes_.value_width;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < sizes_.value_width; ++i) row[i] *= left;
    }
  }

  const DeltaSizes& sizes_;
  ChunkKeys keys_{};
  Gates gates_;
  float* beta_;
  // [tokens, key_width]: keys and queries, multiplied by decays.
  float *key_since_, *key_until_, *query_since_;
  ChunkMatrices matrices_;
  float *error_, *u_;  // [tokens, value_width]: U = beta · error
  float* rows_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
