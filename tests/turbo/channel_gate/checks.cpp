#include "turbo/channel_gate/channel_gate.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class ChannelGateChecks final : public OperatorChecks {
  void run() override {
    const ChannelGates gates{.z = bf16({kTokens, 6}),
                             .b = bf16({kTokens, 2}),
                             .a_log = f32({2}),
                             .bias = f32({6}),
                             .lower_bound = -5};
    const Tensor of_channels = f32({kTokens, 6});
    const Tensor of_heads = f32({kTokens, 2});
    using Dg = ChannelGateForward;
    expect_checks<Dg>({.of = gates, .g = of_channels, .beta = of_heads}, {&Dg::g, &Dg::beta}, {},
                      {[](Dg& a) {
                         a.of.z = bf16({kTokens, 7});
                       },
                       [](Dg& a) {
                         a.of.b = f32({kTokens, 2});
                       },
                       [](Dg& a) { a.of.a_log = f32({3}); }, [](Dg& a) { a.of.bias = f32({7}); },
                       [](Dg& a) { a.of.lower_bound = 1; }});
    using Db = ChannelGateBackward;
    expect_checks<Db>({.of = gates,
                       .d_g = of_channels,
                       .d_beta = of_heads,
                       .d_z = bf16({kTokens, 6}),
                       .d_b = bf16({kTokens, 2})},
                      {&Db::d_g, &Db::d_beta, &Db::d_z, &Db::d_b}, {}, {[](Db& a) { a.of.lower_bound = 1; }});
    using Dw = ChannelGateBackwardWeight;
    expect_checks<Dw>({.of = gates, .d_g = of_channels, .d_weight = f32({8}), .workspace = {}},
                      {&Dw::d_g, &Dw::d_weight}, {}, {[](Dw& a) { a.of.lower_bound = 1; }});
    using Cb = ChannelGateBias;
    expect_checks<Cb>({.x = f32({8}), .low = 1, .high = 2}, {}, {&Cb::x},
                      {[](Cb& a) { a.low = 0; }, [](Cb& a) { a.high = 1; }});
  }
};

}  // namespace

extern const OperatorCheck kChannelGate{"channel_gate", make_checks<ChannelGateChecks>};

}  // namespace primus::turbo::test
