// The three products of operators that multiply their input by a weight matrix (turbo/linear), in the
// precision that the tape's PrecisionRecipe sets for them.
#pragma once

#include "engine/tape.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::engine {

// Attributes of an operator whose output gradient may be rounded stochastically (PrecisionRecipe::at_random).
// Input 1 of such an operator is the token numbers.
struct GradientRounding {
  Tensor scalars;  // of the step
  std::uint64_t seed;
};

// out(0) = x · weightᵀ.
void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight);
// Writes the part of d_in(0) that comes through d_out(0) · weight.
void input_gradient_product(OperatorCall& op, const Tensor& weight);
// d_weight (+)= d_out(0)ᵀ · x.
void weight_gradient_product(OperatorCall& op, const Tensor& x);
// Runs a product with the experts' matrices.
void grouped_product(OperatorCall& op, const turbo::GroupedGemm& product);

}  // namespace primus::engine
