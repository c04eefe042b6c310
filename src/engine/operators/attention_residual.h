// Attention residuals (turbo/attention_residual) as an operator of the tape.
#pragma once

#include "engine/operators/operators.h"

namespace primus::engine {

// Returns the input of a branch, [T, hidden]. It mixes the stream [T, hidden] with its checkpoints [T, n
// * hidden], n >= 1. `norm` and `proj` have [hidden] elements each.
Value attention_residual(const Value& stream, const Value& checkpoints, Parameter& norm, Parameter& proj,
                         double epsilon);

}  // namespace primus::engine
