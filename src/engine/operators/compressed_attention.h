// The special parts of DeepSeek-V4's attention as operators of the tape: pooled latents
// (turbo/latent_pooling), attention over the rows that a query sees (turbo/selected_attention), and the
// indexer that chooses some of these rows (turbo/indexer). T = batch * sequence.
#pragma once

#include "engine/operators/operators.h"
#include "turbo/latent_pooling/latent_pooling.h"

namespace primus::engine {

// Returns x as a constant: no gradient flows back through it.
Value detached(const Value& x);

// Pools the rows of x with gates: [T, width()] -> [pooled(), dim]. `bias` is added to the gates.
Value latent_pooling(const Value& x, Parameter& bias, const turbo::PoolingShape& shape);
// Cuts each sequence into blocks of `ratio` tokens, and returns the position of the first token of every
// complete block: [T] int32 -> [batch * (sequence / ratio)].
Value positions_of_blocks(const Value& positions, std::int64_t batch, std::int64_t ratio);
// Concatenates the rows of a and then the rows of b.
Value stack_rows(const Value& a, const Value& b);

// Lists the rows that each query sees (turbo::WindowAndPooled). `chosen` may be empty. If how.chosen is
// given, it replaces `chosen`, and the memory of how.chosen must outlive the tape.
Value window_and_pooled(const Value& positions, const Value& chosen, const turbo::WindowAndPooled& how);

// Multiplies each of `groups` column blocks by its own rows of the weight: x [T, groups*in] · weight
// [groups*out, in] -> [T, groups*out].
Value grouped_columns_linear(const Value& x, Parameter& weight, std::int64_t groups);

}  // namespace primus::engine
