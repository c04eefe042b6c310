#include "engine/operators/linear_products.h"

#include <algorithm>

#include "base/check.h"
#include "base/random/random.h"
#include "engine/operators/low_rank.h"
#include "engine/operators/mxfp4_products.h"
#include "engine/runtime/delayed_scales.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/fp8_linear/fp8_product.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

namespace {

// Returns the random source for rounding an output's gradient to fp4. The two products that read this
// gradient draw independent random numbers.
turbo::Mxfp4Random random_of(OperatorCall& op, GemmRole role) {
  if (role == GemmRole::kForward || !op.precision().at_random) return {};
  const Parameter& weight = op.parameter();
  const auto source = op.attributes<GradientRounding>();
  PRIMUS_CHECK("linear", op.in(Product::kTokens).elements() == op.d_out(Product::kY).rows());
  turbo::Mxfp4Random random{
      .tokens = op.in(Product::kTokens),
      .scalars = source.scalars,
      .stream = source.seed ^
                random_stream_id(weight.name +
                                 (role == GemmRole::kInputGradient ? ".input_gradient" : ".weight_gradient")),
      .width = weight.whole_shape()[0]};
  std::int64_t begin = 0;
  int run = 0;
  for (const Placement::Rows& part : weight.placement.rows) {
    PRIMUS_CHECK("linear", run < turbo::Mxfp4Random::kMaxRuns);
    random.runs[static_cast<std::size_t>(run++)] = {begin, part.whole};
    begin += part.rows;
  }
  random.run_count = std::max(run, 1);
  return random;
}

// Multiplies in the precision that the recipe sets for this product.
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
  const Gemm product{
      .role = role, .a = a, .b = b, .c = c, .accumulate = accumulate, .spared = spared, .workspace = {}};
  if (op.precision().is_fp4(op.parameter()))
    return launch(op.context(), Mxfp4Linear{.product = product, .random = random_of(op, role)});
  launch(op.context(), product);
}

}  // namespace

void forward_product(OperatorCall& op, const Tensor& x, const Tensor& weight, bool accumulate) {
  multiply(op, GemmRole::kForward, x, weight, op.out(Product::kY), accumulate);
}

void input_gradient_product(OperatorCall& op, const Tensor& weight, InputPlace x) {
  const auto [d_x, previous] = op.d_in(x);
  const bool in_place = !previous.absent() && previous.data == d_x.data;
  multiply(op, GemmRole::kInputGradient, op.d_out(Product::kY), weight, d_x, in_place);
  if (!previous.absent() && !in_place) launch(op.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void weight_gradient_product(OperatorCall& op, const Tensor& x) {
  const auto [d_weight, accumulate] = op.d_weight();
  multiply(op, GemmRole::kWeightGradient, op.d_out(Product::kY), x, d_weight, accumulate);
}

void grouped_product(OperatorCall& op, const turbo::GroupedGemm& product) {
  if (op.precision().is_fp4(op.parameter())) return launch(op.context(), Mxfp4Grouped{.product = product});
  launch(op.context(), product);
}

}  // namespace primus::engine
