#include "turbo/linear/linear.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class LinearChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor weight = bf16({7, kWidth});
    const Tensor y = bf16({kTokens, 7});
    expect_checks<Gemm>({.role = GemmRole::kForward, .a = x, .b = weight, .c = y},
                        {&Gemm::a, &Gemm::b, &Gemm::c});
    constexpr std::int64_t kVectors = 2 * AroundProduct::kColumnMultiple;
    using End = AroundProduct::End;
    const Tensor few = bf16({kTokens, kVectors});
    Gemm around{.role = GemmRole::kForward,
                .a = few,
                .b = bf16({12, kVectors}),
                .c = bf16({kTokens, 12}),
                .around = {.norm = bf16({kVectors}), .delta = few, .sum = few, .bias = bf16({12})}};
    const auto changed = [](auto change) { return [change](Gemm& g) { change(g.around); }; };
    using Ap = AroundProduct;
    expect_checks<Gemm>(
        around, {&Gemm::a, &Gemm::b, &Gemm::c}, {},
        {[](Gemm& g) { g.accumulate = true; }, changed([](Ap& p) { p.sum = {}; }),
         changed([](Ap& p) { p.delta = widened(p.delta); }), changed([](Ap& p) { p.norm = widened(p.norm); }),
         changed([](Ap& p) { p.norm = retyped(p.norm); }), changed([](Ap& p) { p.bias = widened(p.bias); }),
         changed([](Ap& p) { p.end = End::kSwiglu; }), changed([](Ap& p) { p.end = End::kRope; })});
    around.around.end = End::kRope;
    around.around.positions = i32({kTokens}), around.around.table = f32({99, 4});
    around.around.heads = 2, around.around.head_dim = 4;
    expect_checks<Gemm>(around, {}, {},
                        {changed([](Ap& p) { p.positions = widened(p.positions); }),
                         changed([](Ap& p) { p.table = widened(p.table); }),
                         changed([](Ap& p) { p.heads = 4; }), changed([](Ap& p) { p.head_dim = 3; })});
    expect_checks<Gemm>({.role = GemmRole::kInputGradient, .a = y, .b = weight, .c = x},
                        {&Gemm::a, &Gemm::b, &Gemm::c});
    expect_checks<Gemm>({.role = GemmRole::kWeightGradient, .a = y, .b = x, .c = f32({7, kWidth})},
                        {&Gemm::a, &Gemm::b, &Gemm::c});
  }
};

}  // namespace

extern const OperatorCheck kLinear{"linear", make_checks<LinearChecks>};

}  // namespace primus::turbo::test
