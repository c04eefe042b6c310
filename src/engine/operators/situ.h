// SiTU (turbo/situ) as an operator of the tape.
#pragma once

#include "engine/operators/operators.h"

namespace primus::engine {

// Returns beta · tanh(gate / beta) · sigmoid(gate) · linear_beta · tanh(up / linear_beta): [T, 2*ffn] -> [T,
// ffn]. linear_beta 0: uses `up` unchanged.
Value situ(const Value& gate_up, double beta, double linear_beta);

}  // namespace primus::engine
