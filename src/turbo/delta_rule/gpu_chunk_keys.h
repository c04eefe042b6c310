// The last kernel of the delta rule's backward pass on matrix units (gpu_retreat.h).
#pragma once

#include "turbo/delta_rule/gpu_retreat.h"

namespace primus::turbo::PRIMUS_GPU {

// Computes the gradients of queries and keys: sums over the value heads of a key head, and passes the sums
// backward through the normalisation. A block processes a chunk of a key head. Each warp of the block
// processes rows of queries and keys one after another.
template <class T>
struct DeltaChunkKeys {
  static constexpr int kThreads = 256, kOwn = 4;
  DeltaItems<T> in;
  DeltaChunkGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    const DeltaPlace place = in.place(block() * in.group);
    const std::int64_t first = place.item, size = kRows * in.key_dim;
    const int tokens = place.tokens, c = lane() * kOwn;
    const bool there = c < in.key_dim;
    const std::int64_t column = place.row * in.width + place.key_head * in.key_dim + c;
    for (int row = warp(); row < 2 * kRows; row += kThreads / kWarp) {
      const bool key = row >= kRows;
      const int i = row % kRows;
      if (i >= tokens) continue;
      const std::int64_t at = column + i * in.width + (key ? in.k_column : 0);
      float x[kOwn] = {}, gradient[kOwn] = {};
      if (there) {
        load<kOwn>(in.qkv + at, x);
        const float* from = (key ? d.k : d.q) + first * size + i * in.key_dim + c;
        for (std::int64_t head = 0; head < in.group; ++head, from += size) {
          float more[kOwn];
          load<kOwn>(from, more);
          PRIMUS_UNROLL
          for (int n = 0; n < kOwn; ++n) gradient[n] += more[n];
        }
      }
      if (in.normalise) {
        float square = 0, along = 0;
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) {
          square = multiply_add(x[n], x[n], square);
          along = multiply_add(x[n], gradient[n], along);
        }
        const float factor = unit_factor(warp_reduce(square), in.epsilon);
        const float less = warp_reduce(along) * factor * factor;
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) gradient[n] = factor * multiply_add(-less, x[n], gradient[n]);
      }
      if (there) store<kOwn>(d.qkv + at, gradient);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
