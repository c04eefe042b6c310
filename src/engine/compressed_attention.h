// What DeepSeek-V4's attention is made of beside ordinary parts, as operators of the tape: pooled latents
// (turbo/latent_pooling), attention over the rows that a query sees (turbo/selected_attention), and what
// chooses some of them (turbo/indexer). T = batch * sequence.
#pragma once

#include "engine/operators.h"
#include "turbo/latent_pooling/latent_pooling.h"

namespace primus::engine {

// x as what nothing learns from: no gradient goes back through it.
Value detached(const Value& x);

// [T, width()] and the gates' bias -> [pooled(), dim].
Value latent_pooling(const Value& x, Parameter& bias, const turbo::PoolingShape& shape);
// Positions [T] int32 of the first tokens of all whole blocks: [batch * (sequence / ratio)].
Value positions_of_blocks(const Value& positions, std::int64_t batch, std::int64_t ratio);
// Rows of a, then those of b.
Value stack_rows(const Value& a, const Value& b);

// The rows that each query sees (turbo::WindowAndPooled). `chosen` may be empty; how.chosen, in memory that
// outlives the tape, goes before it.
Value window_and_pooled(const Value& positions, const Value& chosen, const turbo::WindowAndPooled& how);

// Each of `groups` runs of columns times rows of its own: x [T, groups*in] · weight [groups*out, in] -> [T,
// groups*out].
Value grouped_columns_linear(const Value& x, Parameter& weight, std::int64_t groups);

}  // namespace primus::engine
