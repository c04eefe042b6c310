// The shape of causal attention over complete sequences.
#pragma once

#include <cmath>
#include <cstdint>

#include "turbo/attention/attention.h"

namespace primus::turbo::test {

inline AttentionShape causal_shape(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                                   std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim) {
  return {.batch = batch,
          .seq_q = seq,
          .seq_k = seq,
          .capacity_k = seq,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .value_dim = value_dim,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
          .causal = true,
          .window = 0};
}

}  // namespace primus::turbo::test
