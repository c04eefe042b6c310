#include "turbo/operator_checks.h"
#include "turbo/sgd/sgd.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class SgdChecks final : public OperatorChecks {
  void run() override {
    const Tensor n = f32({kWidth});
    const Tensor one = f32({1});
    const Tensor working = bf16({kWidth});
    const Tensor scalars = f64({kStepScalars});
    using Sgd = SgdMomentum;
    expect_checks<Sgd>(
        {.param = n,
         .grad = n,
         .momentum_buffer = n,
         .grad_scale = one,
         .working = working,
         .scalars = scalars,
         .momentum = 0.9F},
        {&Sgd::param, &Sgd::grad, &Sgd::momentum_buffer, &Sgd::grad_scale, &Sgd::working, &Sgd::scalars}, {},
        {[](Sgd& a) { a.momentum_buffer = {}; }});
    expect_split_masters<Sgd>({.param = {},
                               .grad = n,
                               .momentum_buffer = n,
                               .grad_scale = one,
                               .working = working,
                               .scalars = scalars,
                               .momentum = 0.9F});
  }
};

}  // namespace

extern const OperatorCheck kSgd{"sgd", make_checks<SgdChecks>};

}  // namespace primus::turbo::test
