// The gated delta rule (turbo/delta_rule) as an operator of the tape. Its operator class is attention. The
// backward pass needs only its inputs, so a recompute policy may drop its output.
//
// Each tensor rank has its own heads, which `shape` describes. The delta rule needs every token of a
// sequence, in order. So for any ContextParallel::exchange(), each context rank gets all tokens for its share
// of the heads. It then sends the results back (engine/parallel/head_exchange.h). The number of context ranks
// must divide a tensor rank's key heads, and thus its value heads (delta_rule_divides()).
#pragma once

#include "engine/operators/operators.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::engine {

// kDeltaRuleSpare: a cached sequence can lose up to this many last tokens without recomputing the remaining
// tokens. kDeltaRuleRing: number of recent inputs that are kept for this purpose. kDeltaRuleRing exceeds
// kDeltaRuleSpare, so the state need not be written after every token.
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
// shape.out_width()]. `shape` has this rank's heads and tokens. With a cache, only the number of rows
// matters, which is batch * sequence.
Value delta_rule(const Value& qkv, const Value& g, const Value& beta, const turbo::DeltaRuleShape& shape,
                 const DeltaRuleOptions& options = {});

// The parameters of a gated delta network between its projections (turbo::AroundDeltaRule).
struct DeltaNetParameters {
  Parameter *kernel, *a_log, *dt_bias, *norm;
  double epsilon;
};

// Returns whether the device has a kernel for delta_net_step() with these operands. The layer of `cache` must
// also have `ring`, and no parameter is gathered.
bool takes_delta_net_step(const Value& wide, const DeltaNetParameters& parameters,
                          const turbo::DeltaRuleShape& shape, const CachedSequences& cache);

// Maps the columns of the first projection, [T, turbo::AroundDeltaRule::columns(shape)], to the input of the
// last projection, [T, shape.out_width()], with the bits of the separate operators. Not recorded for a
// backward pass.
Value delta_net_step(const Value& wide, const DeltaNetParameters& parameters,
                     const turbo::DeltaRuleShape& shape, const CachedSequences& cache);

}  // namespace primus::engine
