#include "turbo/operator_checks.h"
#include "turbo/soft_cap/soft_cap.h"

namespace primus::turbo::test {
namespace {

class SoftCapChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const auto no_cap = [](auto& a) { a.cap = 0; };
    expect_checks<SoftCap>({.x = x, .y = x, .cap = 30}, {&SoftCap::x, &SoftCap::y}, {}, {no_cap});
    using Sc = SoftCapBackward;
    expect_checks<Sc>({.y = x, .d_y = x, .d_x = x, .cap = 30}, {&Sc::y, &Sc::d_y, &Sc::d_x}, {}, {no_cap});
  }
};

}  // namespace

extern const OperatorCheck kSoftCap{"soft_cap", make_checks<SoftCapChecks>};

}  // namespace primus::turbo::test
