#include "turbo/operator_checks.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::test {
namespace {

class SwigluChecks final : public OperatorChecks {
  void run() override {
    {
      const Tensor x = bf16({kTokens, kWidth});
      const Tensor gate_up = bf16({kTokens, 2 * kWidth});
      using Sf = SwigluForward;
      expect_checks<Sf>({.gate_up = gate_up, .out = x}, {&Sf::gate_up, &Sf::out});
      using Sb = SwigluBackward;
      expect_checks<Sb>({.gate_up = gate_up, .d_out = x, .d_gate_up = gate_up},
                        {&Sb::gate_up, &Sb::d_out, &Sb::d_gate_up});
      using Cf = ClampedSwigluForward;
      expect_checks<Cf>({.gate_up = gate_up, .out = x, .limit = 7}, {&Cf::gate_up, &Cf::out}, {},
                        {[](Cf& a) { a.limit = 0; }});
      using Cb = ClampedSwigluBackward;
      expect_checks<Cb>({.gate_up = gate_up, .d_out = x, .d_gate_up = gate_up, .limit = 7},
                        {&Cb::gate_up, &Cb::d_out, &Cb::d_gate_up}, {}, {[](Cb& a) { a.limit = 0; }});
    }
    {
      const Tensor by_row = bf16({kSlots, kWidth});
      const Tensor weights = f32({kTokens, kTopK});
      const Tensor offsets = i32({kExperts + 1});
      const Tensor slots = i32({kSlots});
      const Tensor gate_up = bf16({kSlots, 2 * kWidth});
      using Wf = WeightedSwigluForward;
      expect_checks<Wf>({.gate_up = gate_up,
                         .weights = weights,
                         .offsets = offsets,
                         .slots = slots,
                         .weigh_input = false,
                         .out = by_row},
                        {&Wf::gate_up, &Wf::slots, &Wf::out}, {&Wf::weights, &Wf::offsets});
      using Wb = WeightedSwigluBackward;
      expect_checks<Wb>({.gate_up = gate_up,
                         .weights = weights,
                         .offsets = offsets,
                         .slots = slots,
                         .weigh_input = false,
                         .d_out = by_row,
                         .d_gate_up = gate_up,
                         .previous_weights = weights,
                         .d_weights = weights},
                        {&Wb::gate_up, &Wb::weights, &Wb::slots, &Wb::d_out, &Wb::d_gate_up,
                         &Wb::previous_weights, &Wb::d_weights},
                        {&Wb::offsets});
    }
  }
};

}  // namespace

extern const OperatorCheck kSwiglu{"swiglu", make_checks<SwigluChecks>};

}  // namespace primus::turbo::test
