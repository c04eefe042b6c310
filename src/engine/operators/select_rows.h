// Selection of rows of a matrix, as an operator of the tape.
#pragma once

#include "engine/operators/operators.h"

namespace primus::engine {

// Returns out with out[i, :] = x[rows[i], :], for x [T, columns] and rows [n] int32, each in [0, T). Not
// differentiable.
Value select_rows(const Value& x, const Value& rows);

}  // namespace primus::engine
