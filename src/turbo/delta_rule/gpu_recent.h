// The operands of kernels that process new tokens of cached sequences, and sums over the state, which a warp
// keeps in registers: lane i has key channels [i / kLanesAcross * kOwn, ...) of adjacent value columns.
#pragma once

#include "turbo/attention/gpu_paged.h"
#include "turbo/delta_rule/delta_rule.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

// A ring for each sequence, which keeps the inputs of the most recent tokens: beta, gates, key and value per
// token and head. The key is normalised.
struct RecentTokens {
  float* data;
  std::int32_t* committed;  // per sequence and head: number of tokens in the state
  std::int64_t tokens;      // rows of the ring
  std::int64_t width;       // floats of a token and head
  std::int64_t spare;       // as in CachedDeltaRule
};

template <class T>
struct CachedItems {
  Pages pages;
  const T* qkv;           // null if operators around the delta rule are fused
  const float *g, *beta;  // null if qkv is null
  float* state;
  RecentTokens recent;
  T* out;
  std::int64_t rows, heads, group, key_dim, value_dim, width, k_column, v_column, gates;
  bool normalise;
  float scale, epsilon;

  CachedItems(Context& context, const CachedDeltaRule& a)
      : pages(context, a.sequences),
        qkv(optional<T>(context, a.qkv)),
        g(optional<float>(context, a.g)),
        beta(optional<float>(context, a.beta)),
        state(context.data<float>(a.state)),
        recent{context.data<float>(a.recent), context.data<std::int32_t>(a.committed), a.recent.shape[1],
               a.shape.recent_width(), a.spare},
        out(context.data<T>(a.out)),
        rows(a.shape.rows()),
        heads(a.shape.value_heads),
        group(a.shape.value_heads / a.shape.key_heads),
        key_dim(a.shape.key_dim),
        value_dim(a.shape.value_dim),
        width(a.shape.width()),
        k_column(a.shape.k_column()),
        v_column(a.shape.v_column()),
        gates(a.shape.channel_gates ? a.shape.key_dim : 1),
        normalise(a.shape.normalise),
        scale(a.shape.scale),
        epsilon(a.shape.epsilon) {}

  PRIMUS_DEVICE std::int64_t end(std::int64_t b) const { return pages.lengths[b]; }
  PRIMUS_DEVICE std::int64_t begin(std::int64_t b) const {
    return pages.lengths[b] - (pages.starts[b + 1] - pages.starts[b]);
  }
  // Returns the row of a new token.
  PRIMUS_DEVICE std::int64_t row(std::int64_t b, std::int64_t position) const {
    return pages.starts[b + 1] - (end(b) - position);
  }
  // Return the value of `committed` before and after the pass.
  PRIMUS_DEVICE std::int64_t from(std::int64_t b, std::int64_t head) const {
    return begin(b) == 0 ? 0 : recent.committed[b * heads + head];
  }
  PRIMUS_DEVICE std::int64_t next(std::int64_t b, std::int64_t head) const {
    const std::int64_t before = from(b, head);
    return end(b) - before > recent.tokens ? end(b) - recent.spare : before;
  }
  // Returns the address in `recent` of a token's inputs.
  PRIMUS_DEVICE float* place(std::int64_t b, std::int64_t position, std::int64_t head) const {
    return recent.data + ((b * recent.tokens + position % recent.tokens) * heads + head) * recent.width;
  }
  PRIMUS_DEVICE const T* query(std::int64_t of_row, std::int64_t head) const {
    return qkv + of_row * width + head / group * key_dim;
  }
  PRIMUS_DEVICE const T* value(std::int64_t of_row, std::int64_t head) const {
    return qkv + of_row * width + v_column + head * value_dim;
  }
};

// Loads adjacent floats, four at a time.
template <int kOwn>
PRIMUS_DEVICE void read_lines(const float* from, float (&to)[kOwn]) {
  constexpr int kLine = 4;
  PRIMUS_UNROLL
  for (int n = 0; n < kOwn; n += kLine) {
    const auto line = *reinterpret_cast<const Pack<float, kLine>*>(from + n);
    PRIMUS_UNROLL
    for (int i = 0; i < kLine; ++i) to[n + i] = line.at[i];
  }
}

// sums += factor * x
template <int kCount>
PRIMUS_DEVICE void add_scaled(float factor, const float (&x)[kCount], float (&sums)[kCount]) {
  PRIMUS_UNROLL
  for (int i = 0; i < kCount; ++i) sums[i] = multiply_add(factor, x[i], sums[i]);
}

// Adds the sums of the lanes that have other key channels of the same columns.
template <int kLanesAcross, int kCount>
PRIMUS_DEVICE void sum_over_parts(float (&sums)[kCount]) {
  PRIMUS_UNROLL
  for (int mask = kLanesAcross; mask < kWarp; mask *= 2) {
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) sums[i] += from_lane_xor(sums[i], mask);
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
