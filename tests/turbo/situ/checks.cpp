#include "turbo/operator_checks.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::test {
namespace {

class SituChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    using Si = SituForward;
    expect_checks<Si>({.gate_up = bf16({kTokens, 2 * kWidth}), .out = x, .beta = 4, .linear_beta = 0},
                      {&Si::gate_up, &Si::out}, {},
                      {[](Si& a) { a.beta = 0; }, [](Si& a) { a.linear_beta = -1; }});
    using Sb = SituBackward;
    const Tensor wide = bf16({kTokens, 2 * kWidth});
    expect_checks<Sb>({.gate_up = wide, .d_out = x, .d_gate_up = wide, .beta = 4, .linear_beta = 25},
                      {&Sb::gate_up, &Sb::d_out, &Sb::d_gate_up}, {},
                      {[](Sb& a) { a.beta = 0; }, [](Sb& a) { a.linear_beta = -1; }});
  }
};

}  // namespace

extern const OperatorCheck kSitu{"situ", make_checks<SituChecks>};

}  // namespace primus::turbo::test
