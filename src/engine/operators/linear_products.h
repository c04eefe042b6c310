// The three products of operators that multiply their input by a weight matrix (turbo/linear), in the
// precision that the tape's PrecisionRecipe sets for them.
#pragma once

#include "engine/runtime/tape.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::engine {

// Names of the inputs and outputs of operators that multiply by a weight matrix.
struct Product {
  enum In : InputName { kX, kTokens };  // kTokens: token numbers, if random numbers are drawn
  enum Out : OutputName { kY };
};

// Attributes of an operator whose output gradient may be rounded stochastically (PrecisionRecipe::at_random).
struct GradientRounding {
  Tensor scalars;  // the step's scalars (turbo/step_scalars.h)
  std::uint64_t seed;
};

// Computes Product::kY = x · weightᵀ, or adds the product to Product::kY.
void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight, bool accumulate = false);
// Adds (gradient of Product::kY) · weight to the gradient of input `x`.
void input_gradient_product(OperatorCall& op, const Tensor& weight, InputPlace x = Product::kX);
// Assigns or adds (gradient of Product::kY)ᵀ · x to the weight gradient.
void weight_gradient_product(OperatorCall& op, const Tensor& x);
// Runs a product with the experts' matrices.
void grouped_product(OperatorCall& op, const turbo::GroupedGemm& product);

}  // namespace primus::engine
