#include "turbo/layer_norm/layer_norm.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class LayerNormChecks final : public OperatorChecks {
  void run() override {
    const Tensor q = bf16({kTokens, 24});
    using Ln = LayerNorm;
    expect_checks<Ln>({.x = q, .weight = bf16({24}), .bias = f32({24}), .y = q, .eps = 1},
                      {&Ln::x, &Ln::weight, &Ln::bias, &Ln::y}, {}, {[](Ln& a) { a.eps = -1; }});
  }
};

}  // namespace

extern const OperatorCheck kLayerNorm{"layer_norm", make_checks<LayerNormChecks>};

}  // namespace primus::turbo::test
