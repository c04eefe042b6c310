// The gated delta rule (turbo/delta_rule) as an operator of the tape. Its operator class is attention: only
// its inputs are kept for the backward pass, and a recompute policy may drop its output.
//
// Each tensor rank has its own heads, which `shape` describes. The delta rule needs every token of a
// sequence, in order. So with context ranks and any ContextParallel::exchange(), each rank gets all tokens
// for its share of the heads and sends the results back (engine/parallel/head_exchange.h). The number of
// context ranks must therefore divide the key heads of a tensor rank, and thus the value heads
// (delta_rule_divides()).
#pragma once

#include "engine/operators/operators.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::engine {

// kDeltaRuleSpare: max tokens by which a cached sequence can be truncated without recomputing the rest.
// kDeltaRuleRing: number of recent inputs that are kept for such truncations. Because kDeltaRuleRing exceeds
// kDeltaRuleSpare, the state need not be written after every token.
inline constexpr std::int64_t kDeltaRuleSpare = 6, kDeltaRuleRing = 16;

struct DeltaRuleOptions {
  CachedSequences cache = {};          // its layer must have `state`, `recent` and `committed`
  ContextParallel* context = nullptr;  // given: this rank holds `sequence` tokens of each sequence, in the
                                       // context's order
  Value first_key = {};                // [T] int32, as in AttentionOptions
};

// Returns whether the heads can be split over `context` ranks.
inline bool delta_rule_divides(std::int64_t key_heads, std::int64_t context) {
  return key_heads % context == 0;
}

// Maps qkv [T, shape.width()], g [T, shape.gates()] fp32 and beta [T, value_heads] fp32 to [T,
// shape.out_width()]. `shape` has this rank's heads and tokens. With a cache, only the product of batch and
// sequence matters: the number of rows.
Value delta_rule(const Value& qkv, const Value& g, const Value& beta, const turbo::DeltaRuleShape& shape,
                 const DeltaRuleOptions& options = {});

}  // namespace primus::engine
