#include "engine/linear_products.h"

#include "engine/delayed_scales.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/fp8_linear/fp8_product.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

namespace {

// In the types that the recipe has for this product.
void multiply(OperatorCall& op, GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c,
              bool accumulate) {
  const int spared = op.context().spared;
  if (op.precision().is_fp8(role, op.parameter())) {
    turbo::Fp8Linear call{.role = role, .a = a, .b = b, .c = c, .accumulate = accumulate, .spared = spared};
    if (role != GemmRole::kForward) call.a_type = op.precision().gradients;
    if (const DelayedScales* const scales = op.precision().scales) {
      using Operand = DelayedScales::Operand;
      const bool forward = role == GemmRole::kForward, weight = role != GemmRole::kWeightGradient;
      call.a_scaling =
          scales->of(op.parameter(), forward ? Operand::kInput : Operand::kOutputGradient, op.training());
      call.b_scaling = scales->of(op.parameter(), weight ? Operand::kWeight : Operand::kInput, op.training());
    }
    return launch(op.context(), call);
  }
  launch(
      op.context(),
      Gemm{
          .role = role, .a = a, .b = b, .c = c, .accumulate = accumulate, .spared = spared, .workspace = {}});
}

}  // namespace

void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight) {
  multiply(op, GemmRole::kForward, x, weight, op.out(0), false);
}

void input_gradient_product(OperatorCall& op, const Tensor& weight) {
  const auto [d_x, previous] = op.d_in(0);
  const bool in_place = !previous.absent() && previous.data == d_x.data;
  multiply(op, GemmRole::kInputGradient, op.d_out(0), weight, d_x, in_place);
  if (!previous.absent() && !in_place) launch(op.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void weight_gradient_product(OperatorCall& op, const Tensor& x) {
  const auto [d_weight, accumulate] = op.d_weight();
  multiply(op, GemmRole::kWeightGradient, op.d_out(0), x, d_weight, accumulate);
}

}  // namespace primus::engine
