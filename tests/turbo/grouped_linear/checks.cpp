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
    const Tensor chosen = i32({kTokens, kTopK});
    const auto changed = [](auto change) { return [change](Gg& g) { change(g.chosen); }; };
    Gg gated{.role = GemmRole::kForward,
             .a = x,
             .b = bf16({kExperts, 14, kWidth}),
             .c = y,
             .chosen = {.experts = chosen,
                        .end = ChosenExperts::End::kGated,
                        .weights = f32({kTokens, kTopK}),
                        .bias = bf16({kExperts, 14})}};
    expect_checks<Gg>(gated, {&Gg::a, &Gg::b, &Gg::c}, {},
                      {changed([](ChosenExperts& c) { c.experts = retyped(c.experts); }),
                       changed([](ChosenExperts& c) { c.weights = widened(c.weights); }),
                       changed([](ChosenExperts& c) { c.bias = widened(c.bias); }),
                       changed([](ChosenExperts& c) { c.limit = 1; }), [&](Gg& g) { g.offsets = offsets; }});
    Gg summed{.role = GemmRole::kForward,
              .a = y,
              .b = bf16({kExperts, kWidth, 7}),
              .c = x,
              .chosen = {.experts = chosen, .end = ChosenExperts::End::kSummed, .previous = x}};
    expect_checks<Gg>(summed, {&Gg::a, &Gg::b, &Gg::c}, {},
                      {changed([](ChosenExperts& c) { c.previous = widened(c.previous); }),
                       changed([](ChosenExperts& c) { c.limit = 1; })});
    gated.chosen.shared = {.weights = bf16({2 * 5, kWidth}),
                           .rows = bf16({kTokens, 5}),
                           .gate = f32({1, kWidth}),
                           .gates = f32({kTokens})};
    expect_checks<Gg>(gated, {}, {},
                      {changed([](ChosenExperts& c) { c.shared.weights = widened(c.shared.weights); }),
                       changed([](ChosenExperts& c) { c.shared.rows = widened(c.shared.rows); }),
                       changed([](ChosenExperts& c) { c.shared.gate = widened(c.shared.gate); }),
                       changed([](ChosenExperts& c) { c.shared.gates = {}; }),
                       changed([](ChosenExperts& c) { c.shared.weights = {}; })});
    summed.chosen.previous = {};
    summed.chosen.shared = {
        .weights = bf16({kWidth, 5}), .rows = bf16({kTokens, 5}), .gates = f32({kTokens})};
    expect_checks<Gg>(summed, {}, {},
                      {changed([](ChosenExperts& c) { c.shared.weights = widened(c.shared.weights); }),
                       changed([](ChosenExperts& c) { c.shared.gates = widened(c.shared.gates); }),
                       changed([&](ChosenExperts& c) { c.previous = x; })});
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
