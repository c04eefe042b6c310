#include <functional>
#include <vector>

#include "turbo/latent_pooling/latent_pooling.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class LatentPoolingChecks final : public OperatorChecks {
  void run() override {
    const PoolingShape pooling{.batch = 2, .sequence = 3, .ratio = 2, .dim = kWidth, .overlap = true};
    const Tensor projection = bf16({kTokens, 4 * kWidth});
    const Tensor bias = f32({2, 2 * kWidth});
    const Tensor pooled = bf16({2, kWidth});
    const auto pools = []<class Call>() {
      return std::vector<std::function<void(Call&)>>{
          [](Call& a) { a.shape.ratio = 0; }, [](Call& a) { a.shape.ratio = 4; },
          [](Call& a) { a.shape.overlap = false; }, [](Call& a) { a.shape.batch = 0; }};
    };
    using Lp = LatentPooling;
    expect_checks<Lp>({.shape = pooling, .x = projection, .bias = bias, .out = pooled},
                      {&Lp::x, &Lp::bias, &Lp::out}, {}, pools.operator()<Lp>());
    using Lb = LatentPoolingBackward;
    expect_checks<Lb>(
        {.shape = pooling, .x = projection, .bias = bias, .d_out = pooled, .d_x = projection, .d_bias = bias},
        {&Lb::x, &Lb::bias, &Lb::d_out, &Lb::d_x, &Lb::d_bias}, {}, pools.operator()<Lb>());
    using Wp = WindowAndPooled;
    expect_checks<Wp>({.batch = 2,
                       .sequence = 3,
                       .window = 2,
                       .ratio = 2,
                       .chosen = i32({kTokens, 4}),
                       .selected = i32({kTokens, 6})},
                      {&Wp::chosen, &Wp::selected}, {},
                      {[](Wp& a) { a.window = 0; }, [](Wp& a) { a.ratio = 0; }, [](Wp& a) { a.batch = 3; }});
  }
};

}  // namespace

extern const OperatorCheck kLatentPooling{"latent_pooling", make_checks<LatentPoolingChecks>};

}  // namespace primus::turbo::test
