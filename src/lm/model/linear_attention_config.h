// Linear attention, which keeps a state instead of keys and values: gated delta networks (Qwen3-Next,
// Qwen3.5) and Kimi delta attention. A member that corresponds to exactly one setting is declared in
// blocks/linear_attention.cpp and blocks/delta_attention.cpp (model_fields.def).
#pragma once

#include <cstdint>

namespace primus {

struct LinearAttentionConfig {
#define LINEAR_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"

  // Return the total width of the keys, and of the values. Queries are as wide as keys.
  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return value_heads * value_dim; }

  bool operator==(const LinearAttentionConfig&) const = default;
};

}  // namespace primus
