#include "engine/linear_products.h"

#include "turbo/elementwise/elementwise.h"
#include "turbo/fp8_linear/fp8_product.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

namespace {

// In the types that the recipe has for this product.
void multiply(Step& s, GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  const int spared = s.context().spared;
  if (s.precision().is_fp8(role, s.parameter())) {
    turbo::Fp8Linear call{.role = role, .a = a, .b = b, .c = c, .accumulate = accumulate, .spared = spared};
    if (role != GemmRole::kForward) call.a_type = s.precision().gradients;
    return launch(s.context(), call);
  }
  launch(
      s.context(),
      Gemm{
          .role = role, .a = a, .b = b, .c = c, .accumulate = accumulate, .spared = spared, .workspace = {}});
}

}  // namespace

void forward_product(Step& s, const Tensor& x, const Tensor& weight) {
  multiply(s, GemmRole::kForward, x, weight, s.out(0), false);
}

void input_gradient_product(Step& s, const Tensor& weight) {
  const auto [d_x, previous] = s.d_in(0);
  const bool in_place = !previous.absent() && previous.data == d_x.data;
  multiply(s, GemmRole::kInputGradient, s.d_out(0), weight, d_x, in_place);
  if (!previous.absent() && !in_place) launch(s.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void weight_gradient_product(Step& s, const Tensor& x) {
  const auto [d_weight, accumulate] = s.d_weight();
  multiply(s, GemmRole::kWeightGradient, s.d_out(0), x, d_weight, accumulate);
}

}  // namespace primus::engine
