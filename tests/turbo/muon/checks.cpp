#include "turbo/muon/muon.h"
#include "turbo/operator_checks.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class MuonChecks final : public OperatorChecks {
  void run() override {
    const Tensor n = f32({kWidth});
    const Tensor one = f32({1});
    const Tensor working = bf16({kWidth});
    const Tensor scalars = f64({kStepScalars});
    expect_split_masters<MuonUpdate>(
        {.param = {}, .direction = n, .grad_scale = one, .working = working, .scalars = scalars, .scale = 1});
    using Mm = MuonMomentum;
    expect_checks<Mm>(
        {.grad = n, .momentum = n, .direction = n, .grad_scale = one, .beta = 0.9F, .nesterov = false},
        {&Mm::grad, &Mm::momentum, &Mm::direction, &Mm::grad_scale});
    using Mn = MuonNormalize;
    expect_checks<Mn>({.x = n, .sum_of_squares = f64({1}), .out = working},
                      {&Mn::x, &Mn::sum_of_squares, &Mn::out});
    using Mp = MuonPolynomial;
    const Tensor square = f32({7, 7});
    expect_checks<Mp>({.gram = square, .square = square, .out = bf16({7, 7}), .a = 1, .b = 1, .c = 1},
                      {&Mp::gram, &Mp::square, &Mp::out});
    using Mu = MuonUpdate;
    expect_checks<Mu>({.param = n,
                       .direction = working,
                       .grad_scale = one,
                       .working = working,
                       .scalars = scalars,
                       .scale = 1},
                      {&Mu::param, &Mu::direction, &Mu::grad_scale, &Mu::working, &Mu::scalars});
  }
};

}  // namespace

extern const OperatorCheck kMuon{"muon", make_checks<MuonChecks>};

}  // namespace primus::turbo::test
