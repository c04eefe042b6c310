#include "engine/linear_products.h"

#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

void forward_product(Step& s, const Tensor& x, const Tensor& weight) {
  launch(s.context(), Gemm{.role = GemmRole::kForward,
                           .a = x,
                           .b = weight,
                           .c = s.out(0),
                           .accumulate = false,
                           .spared = s.context().spared,
                           .workspace = {}});
}

void input_gradient_product(Step& s, const Tensor& weight) {
  const auto [d_x, previous] = s.d_in(0);
  const bool in_place = !previous.absent() && previous.data == d_x.data;
  launch(s.context(), Gemm{.role = GemmRole::kInputGradient,
                           .a = s.d_out(0),
                           .b = weight,
                           .c = d_x,
                           .accumulate = in_place,
                           .spared = s.context().spared,
                           .workspace = {}});
  if (!previous.absent() && !in_place) launch(s.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void weight_gradient_product(Step& s, const Tensor& x) {
  const auto [d_weight, accumulate] = s.d_weight();
  launch(s.context(), Gemm{.role = GemmRole::kWeightGradient,
                           .a = s.d_out(0),
                           .b = x,
                           .c = d_weight,
                           .accumulate = accumulate,
                           .spared = s.context().spared,
                           .workspace = {}});
}

}  // namespace primus::engine
