#include "turbo/bias/bias.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class BiasChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    expect_checks<AddBias>({.x = x, .bias = bf16({kWidth}), .y = x},
                           {&AddBias::x, &AddBias::bias, &AddBias::y});
    using Bw = AddBiasBackwardWeight;
    expect_checks<Bw>({.d_y = x, .d_bias = f32({kWidth}), .accumulate = false}, {&Bw::d_y, &Bw::d_bias});
  }
};

}  // namespace

extern const OperatorCheck kBias{"bias", make_checks<BiasChecks>};

}  // namespace primus::turbo::test
