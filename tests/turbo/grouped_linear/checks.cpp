#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class GroupedLinearChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor by_row = bf16({kSlots, kWidth});
    const Tensor offsets = i32({kExperts + 1});
    const Tensor slots = i32({kSlots});
    const Tensor expert_weights = bf16({kExperts, 7, kWidth});
    const Tensor y = bf16({kSlots, 7});
    using Gg = GroupedGemm;
    expect_checks<Gg>({.role = GemmRole::kForward,
                       .a = x,
                       .b = expert_weights,
                       .c = y,
                       .offsets = offsets,
                       .a_rows = slots},
                      {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets, &Gg::a_rows}, {},
                      {[](Gg& a) { a.accumulate = true; }, [](Gg& a) { a.b_rows = a.a_rows; }});
    expect_checks<Gg>(
        {.role = GemmRole::kInputGradient, .a = y, .b = expert_weights, .c = by_row, .offsets = offsets},
        {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets}, {}, {[](Gg& a) { a.accumulate = true; }});
    expect_checks<Gg>({.role = GemmRole::kWeightGradient,
                       .a = y,
                       .b = x,
                       .c = f32({kExperts, 7, kWidth}),
                       .offsets = offsets,
                       .b_rows = slots},
                      {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets, &Gg::b_rows});
    using Gb = GroupedBias;
    expect_checks<Gb>({.x = by_row, .bias = bf16({kExperts, kWidth}), .y = by_row, .offsets = offsets},
                      {&Gb::x, &Gb::bias, &Gb::y, &Gb::offsets});
    using Gw = GroupedBiasBackward;
    expect_checks<Gw>(
        {.d_y = by_row, .d_bias = f32({kExperts, kWidth}), .offsets = offsets, .accumulate = false},
        {&Gw::d_y, &Gw::d_bias, &Gw::offsets});
  }
};

}  // namespace

extern const OperatorCheck kGroupedLinear{"grouped_linear", make_checks<GroupedLinearChecks>};

}  // namespace primus::turbo::test
