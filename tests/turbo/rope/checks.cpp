#include "turbo/operator_checks.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::test {
namespace {

class RopeChecks final : public OperatorChecks {
  void run() override {
    const Tensor positions = i32({kTokens});
    const Tensor x = bf16({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim});
    using Rp = Rope;
    Rp normed{.x = x,
              .y = x,
              .positions = positions,
              .table = f32({32, kHeadDim}),
              .heads = kHeads + kKvHeads,
              .head_dim = kHeadDim,
              .rotary_dim = kHeadDim,
              .inverse = false,
              .norm = {.weight = bf16({2 * kHeadDim}), .query_heads = kHeads}};
    expect_checks<Rp>(
        normed, {}, {},
        {[](Rp& a) { a.norm.weight = retyped(a.norm.weight); },
         [](Rp& a) { a.norm.weight = widened(a.norm.weight); }, [](Rp& a) { a.norm.query_heads = 99; }});
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
