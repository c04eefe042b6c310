// Sends tokens to experts in several rounds (engine/parallel/expert_dispatch.h), to save memory. Each rank
// divides its tokens into as many ranges as there are rounds. A round is a complete dispatch of one range of
// every rank, with its own plan, and the next round reuses the memory of the round before it. So the
// buffers that hold tokens, the experts' rows, results and gradients have the size of one round.
//
// The ranges depend only on the number of tokens. So all ranks make the same calls, for any load of the
// experts, without an exchange of counts. A token has all its experts in one round, so its sum is added in
// the same order. The gradient of an expert's matrix is the sum over the rounds, as with microbatches: it
// depends on the number of rounds by rounding, and not on the load. A pass with fewer tokens than rounds,
// such as the next token of a generated text, has one round for each token.
#pragma once

#include "engine/parallel/parallel_operators.h"

namespace primus::engine {

// Returns the tokens of round `round` of `rounds`, of a rank with `tokens` tokens.
FlatRange tokens_of_round(std::int64_t tokens, std::int64_t rounds, std::int64_t round);

// Copies the rows of a range: [T, c] -> [range, c]. Keeps no copy for the backward pass, which copies again.
Value take_rows(const Value& x, const FlatRange& range);

// Copies `part` to the rows of `range` of `all`, which has `total` rows. Begin with an empty `all`, and join
// every row once. Pass `all` by std::move to write in place.
Value join_rows(Value all, const Value& part, const FlatRange& range, std::int64_t total);

// Counts `times` uses of a parameter that a pass of training does not make, because a microbatch with few
// tokens has fewer rounds than others. They contribute no gradient. Without them, the gradients of later
// microbatches would wait for their turn (WeightGradientQueue).
void skip_uses(Tape& tape, Parameter& parameter, std::int64_t times);

}  // namespace primus::engine
