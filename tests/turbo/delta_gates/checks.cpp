#include "turbo/delta_gates/delta_gates.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class DeltaGatesChecks final : public OperatorChecks {
  void run() override {
    const Tensor ba = bf16({kTokens, 6});
    const Tensor heads = f32({3});
    const Tensor gates = f32({kTokens, 3});
    using Df = DeltaGatesForward;
    expect_checks<Df>({.ba = ba, .a_log = heads, .dt_bias = heads, .g = gates, .beta = gates},
                      {&Df::ba, &Df::a_log, &Df::dt_bias, &Df::g, &Df::beta});
    using Di = DeltaGatesBackwardInput;
    expect_checks<Di>({.ba = ba, .a_log = heads, .dt_bias = heads, .d_g = gates, .d_beta = gates, .d_ba = ba},
                      {&Di::ba, &Di::a_log, &Di::dt_bias, &Di::d_g, &Di::d_beta, &Di::d_ba});
    using Dw = DeltaGatesBackwardWeight;
    expect_checks<Dw>({.ba = ba, .a_log = heads, .dt_bias = heads, .d_g = gates, .d_weights = f32({6})},
                      {&Dw::ba, &Dw::a_log, &Dw::dt_bias, &Dw::d_g, &Dw::d_weights});
  }
};

}  // namespace

extern const OperatorCheck kDeltaGates{"delta_gates", make_checks<DeltaGatesChecks>};

}  // namespace primus::turbo::test
