// The three products of operators that multiply their input by a weight matrix (turbo/linear), in the types
// that the tape's PrecisionRecipe has for them.
#pragma once

#include "engine/tape.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::engine {

// Attributes of an operator whose output's gradient may be rounded at random (PrecisionRecipe::at_random);
// its input 1 are the tokens' numbers then.
struct GradientRounding {
  Tensor scalars;  // the step's
  std::uint64_t seed;
};

// out(0) = x · weightᵀ.
void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight);
// The part of d_in(0) that comes through d_out(0) · weight.
void input_gradient_product(OperatorCall& op, const Tensor& weight);
// d_weight (+)= d_out(0)ᵀ · x.
void weight_gradient_product(OperatorCall& op, const Tensor& x);
// A product with the matrices of experts.
void grouped_product(OperatorCall& op, const turbo::GroupedGemm& product);

}  // namespace primus::engine
