#include "turbo/operator_checks.h"
#include "turbo/rms_norm/rms_norm.h"

namespace primus::turbo::test {
namespace {

class RmsNormChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor rows = f32({kTokens});
    using Nf = RmsNormForward;
    expect_checks<Nf>(
        {.x = x, .delta = x, .weight = bf16({kWidth}), .sum = x, .y = x, .rstd = rows, .eps = 1e-5F},
        {&Nf::x, &Nf::delta, &Nf::weight, &Nf::sum, &Nf::y, &Nf::rstd}, {}, {[](Nf& a) { a.sum = {}; }});
    using Ni = RmsNormBackwardInput;
    expect_checks<Ni>({.x = x,
                       .weight = bf16({kWidth}),
                       .rstd = rows,
                       .d_y = x,
                       .d_sum = x,
                       .d_x = x,
                       .d_weight = f32({kWidth})},
                      {&Ni::x, &Ni::weight, &Ni::rstd, &Ni::d_y, &Ni::d_sum, &Ni::d_x, &Ni::d_weight});
    using Nw = RmsNormBackwardWeight;
    expect_checks<Nw>({.x = x, .rstd = rows, .d_y = x, .d_weight = f32({kWidth}), .accumulate = false},
                      {&Nw::x, &Nw::rstd, &Nw::d_y, &Nw::d_weight});
  }
};

}  // namespace

extern const OperatorCheck kRmsNorm{"rms_norm", make_checks<RmsNormChecks>};

}  // namespace primus::turbo::test
