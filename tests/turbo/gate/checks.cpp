#include "turbo/gate/gate.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class GateChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor rows = bf16({kTokens, 1});
    using Gf = GateForward;
    expect_checks<Gf>({.x = x, .gate = x, .y = x}, {&Gf::x, &Gf::gate, &Gf::y});
    EXPECT_EQ(refusal(Gf{.x = x, .gate = f32({kTokens, 1}), .y = x}), "");
    using Gb = GateBackward;
    expect_checks<Gb>({.x = x, .gate = rows, .d_y = x, .d_x = x, .d_gate = rows},
                      {&Gb::x, &Gb::gate, &Gb::d_y, &Gb::d_x, &Gb::d_gate});
    // Calls for two heads.
    constexpr std::int64_t kDim = kWidth / 2;
    const Tensor weight = bf16({kDim});
    const Tensor rstd = f32({kTokens, 2});
    using Nf = GatedNormForward;
    expect_checks<Nf>({.activation = GateActivation::kSilu,
                       .x = x,
                       .gate = x,
                       .weight = weight,
                       .y = x,
                       .rstd = rstd,
                       .eps = 1e-5F},
                      {&Nf::x, &Nf::gate, &Nf::weight, &Nf::y, &Nf::rstd});
    using Ni = GatedNormBackwardInput;
    expect_checks<Ni>({.activation = GateActivation::kSilu,
                       .x = x,
                       .gate = x,
                       .weight = weight,
                       .rstd = rstd,
                       .d_y = x,
                       .d_x = x,
                       .d_gate = x},
                      {&Ni::x, &Ni::gate, &Ni::weight, &Ni::rstd, &Ni::d_y, &Ni::d_x, &Ni::d_gate});
    using Nw = GatedNormBackwardWeight;
    expect_checks<Nw>({.activation = GateActivation::kSilu,
                       .x = x,
                       .gate = x,
                       .rstd = rstd,
                       .d_y = x,
                       .d_weight = f32({kDim}),
                       .accumulate = false},
                      {&Nw::x, &Nw::gate, &Nw::rstd, &Nw::d_y, &Nw::d_weight});
  }
};

}  // namespace

extern const OperatorCheck kGate{"gate", make_checks<GateChecks>};

}  // namespace primus::turbo::test
