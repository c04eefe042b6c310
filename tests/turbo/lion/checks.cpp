#include "turbo/lion/lion.h"
#include "turbo/operator_checks.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class LionChecks final : public OperatorChecks {
  void run() override {
    const Tensor n = f32({kWidth});
    const Tensor one = f32({1});
    const Tensor working = bf16({kWidth});
    const Tensor scalars = f64({kStepScalars});
    Lion call{.param = n,
              .grad = n,
              .exp_avg = n,
              .grad_scale = one,
              .working = working,
              .scalars = scalars,
              .beta1 = 0.9F,
              .beta2 = 0.95F};
    expect_checks<Lion>(
        call, {&Lion::param, &Lion::grad, &Lion::exp_avg, &Lion::grad_scale, &Lion::working, &Lion::scalars});
    call.param = {};
    expect_split_masters<Lion>(call);
  }
};

}  // namespace

extern const OperatorCheck kLion{"lion", make_checks<LionChecks>};

}  // namespace primus::turbo::test
