// Column offsets of queries, keys and values in a row of a fused projection.
#pragma once

#include <cstdint>

#include "turbo/attention/attention.h"

namespace primus::engine {

struct FusedColumns {
  std::int64_t k, v, width;
  FusedColumns(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim)
      : k(heads * head_dim), v(k + kv_heads * head_dim), width(v + kv_heads * value_dim) {}
  explicit FusedColumns(const turbo::AttentionShape& s)
      : FusedColumns(s.heads, s.kv_heads, s.head_dim, s.value_dim) {}
};

}  // namespace primus::engine
