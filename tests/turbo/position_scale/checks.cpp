#include "turbo/operator_checks.h"
#include "turbo/position_scale/position_scale.h"

namespace primus::turbo::test {
namespace {

class PositionScaleChecks final : public OperatorChecks {
  void run() override {
    const Tensor positions = i32({kTokens});
    const Tensor x = bf16({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim});
    using Ps = PositionScale;
    expect_checks<Ps>(
        {.x = x, .y = x, .positions = positions, .cols = kHeadDim, .floor_scale = 8192, .attn_scale = 0.1F},
        {&Ps::x, &Ps::y, &Ps::positions}, {},
        {[](Ps& a) { a.cols = 999; }, [](Ps& a) { a.floor_scale = 0; }, [](Ps& a) { a.first = 2; }});
  }
};

}  // namespace

extern const OperatorCheck kPositionScale{"position_scale", make_checks<PositionScaleChecks>};

}  // namespace primus::turbo::test
