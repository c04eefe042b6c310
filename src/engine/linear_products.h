// The three products of operators that multiply their input by a weight matrix (turbo/linear), in the types
// that the tape's PrecisionRecipe has for them.
#pragma once

#include "engine/tape.h"

namespace primus::engine {

// out(0) = x · weightᵀ.
void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight);
// The part of d_in(0) that comes through d_out(0) · weight.
void input_gradient_product(OperatorCall& op, const Tensor& weight);
// d_weight (+)= d_out(0)ᵀ · x.
void weight_gradient_product(OperatorCall& op, const Tensor& x);

}  // namespace primus::engine
