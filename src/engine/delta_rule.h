// The gated delta rule (turbo/delta_rule) as an operator of the tape. Its class is that of attention: nothing
// but its inputs is kept for the backward pass, and a policy may drop its output.
//
// Tensor ranks have heads of their own, and `shape` is of those. Context ranks need every token of a
// sequence, in order: whatever ContextParallel::exchange() says, each rank gets all tokens of its share of
// the heads and gives the results back (engine/head_exchange.h). So the context ranks must divide the key
// heads of a tensor rank, and with them the value heads: delta_rule_divides().
#pragma once

#include "engine/operators.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::engine {

// Tokens that a sequence in a cache may lose without being read again, and inputs that are kept for it: more,
// so that a state is written once in many tokens.
inline constexpr std::int64_t kDeltaRuleSpare = 6, kDeltaRuleRing = 16;

struct DeltaRuleOptions {
  CachedSequences cache = {};          // its layer has `state`, `recent` and `committed`
  ContextParallel* context = nullptr;  // `sequence` tokens of each sequence are here, in its order
  Value first_key = {};                // as AttentionOptions'
};

// Whether `context` ranks may share the heads.
inline bool delta_rule_divides(std::int64_t key_heads, std::int64_t context) {
  return key_heads % context == 0;
}

// qkv [T, shape.width()], g [T, shape.gates()] fp32, beta [T, value_heads] fp32 -> [T, shape.out_width()].
// `shape`: of this rank's heads and tokens; with a cache its batch and sequence only multiply to the rows.
Value delta_rule(const Value& qkv, const Value& g, const Value& beta, const turbo::DeltaRuleShape& shape,
                 const DeltaRuleOptions& options = {});

}  // namespace primus::engine
