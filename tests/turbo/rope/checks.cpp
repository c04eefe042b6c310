#include "turbo/operator_checks.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::test {
namespace {

class RopeChecks final : public OperatorChecks {
  void run() override {
    const Tensor positions = i32({kTokens});
    const Tensor x = bf16({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim});
    using Rp = Rope;
    expect_checks<Rp>(
        {.x = x,
         .y = x,
         .positions = positions,
         .table = f32({32, kHeadDim}),
         .heads = kHeads + kKvHeads,
         .head_dim = kHeadDim,
         .rotary_dim = kHeadDim,
         .inverse = false},
        {&Rp::x, &Rp::y, &Rp::positions, &Rp::table}, {},
        {[](Rp& a) { a.rotary_dim = 7; }, [](Rp& a) { a.rotary_begin = 1; }, [](Rp& a) { a.heads = 99; }});
  }
};

}  // namespace

extern const OperatorCheck kRope{"rope", make_checks<RopeChecks>};

}  // namespace primus::turbo::test
