#include "turbo/elementwise/elementwise.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class ElementwiseChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor rows = f32({kTokens});
    expect_checks<Add>({.a = x, .b = x, .out = x}, {&Add::a, &Add::b, &Add::out});
    expect_checks<Add>({.a = x, .b = bf16({2 * kTokens, kWidth}), .out = x, .ranks = 3, .rank = 2},
                       {&Add::a, &Add::b, &Add::out}, {},
                       {[](Add& a) { a.ranks = 2; }, [](Add& a) { a.rank = 3; }, [](Add& a) { a.rank = -1; },
                        [](Add& a) { a.by_rank = true; }});
    expect_checks<Add>(
        {.a = x, .b = bf16({2 * kTokens, kWidth}), .out = x, .ranks = 2, .rank = 1, .by_rank = true},
        {&Add::a, &Add::b, &Add::out}, {},
        {[](Add& a) { a.ranks = 3; }, [](Add& a) { a.rank = 2; }, [](Add& a) { a.by_rank = false; }});
    const Tensor masters = f32({kWidth});
    const Tensor values = bf16({kWidth});
    using Round = RoundMasters;
    expect_checks<Round>({.masters = masters, .working = values, .remainder = i16({kWidth})},
                         {&Round::masters, &Round::working, &Round::remainder});
    expect_checks<Cast>({.x = x, .out = f32({kTokens, kWidth})}, {&Cast::x, &Cast::out});
    expect_checks<Sum>({.x = rows, .out = f32({1}), .accumulate = false}, {&Sum::out}, {&Sum::x});
    using Nan = CountNonFinite;
    expect_checks<Nan>({.x = x, .out = i32({1}), .accumulate = false}, {&Nan::out}, {&Nan::x});
    using Rn = RandomNormal;
    expect_checks<Rn>({.out = rows, .seed = 1, .stream = 2, .offset = 0, .mean = 0, .std = 1}, {}, {&Rn::out},
                      {[](Rn& a) { a.offset = -1; }, [](Rn& a) { a.length = -1; },
                       [](Rn& a) { a.stride = 1; }, [](Rn& a) { a.length = 7; }});
    expect_checks<Scale>({.x = x, .out = x, .factor = 2}, {&Scale::x, &Scale::out});
    expect_checks<LogUniform>({.x = rows, .low = 1, .high = 2}, {}, {&LogUniform::x},
                              {[](LogUniform& a) { a.low = 0; }, [](LogUniform& a) { a.high = 1; }});
    expect_checks<Fill>({.out = x, .value = 1}, {}, {&Fill::out});
    using Cr = CopyRows;
    expect_checks<Cr>({.from = x,
                       .to = x,
                       .rows = kTokens,
                       .cols = kWidth,
                       .from_stride = kWidth,
                       .to_stride = kWidth,
                       .group_rows = kTokens,
                       .to_group_stride = kTokens * kWidth},
                      {}, {&Cr::from, &Cr::to},
                      {[](Cr& a) { a.from_stride = kWidth - 1; }, [](Cr& a) { a.to_stride = kWidth - 1; },
                       [](Cr& a) { a.group_rows = 0; }, [](Cr& a) { a.rows = -1; },
                       [](Cr& a) { a.from.dtype = a.to.dtype = DType::kI32, a.add = true; }});
  }
};

}  // namespace

extern const OperatorCheck kElementwise{"elementwise", make_checks<ElementwiseChecks>};

}  // namespace primus::turbo::test
