// A head with one output: the score of each token (reward models, value models).
#pragma once

#include "comm/communicator.h"
#include "engine/operators/operators.h"

namespace primus::engine {

// Returns scores[t] = hidden[t] . weight, [T] fp32, on every rank of `group`. `hidden` [T/n, c]: this rank's
// rows; null `group`: all rows. `weight` [1, c]. The scores are available immediately, on any tape.
//
// Like lm_head_loss(), this operator is the end of a training tape: `weights` [T] fp32 is the gradient of the
// loss with respect to each score, and may be written after the call, until the backward pass begins.
Value score_head(const Value& hidden, Parameter& weight, const Value& weights, comm::Communicator* group);

}  // namespace primus::engine
