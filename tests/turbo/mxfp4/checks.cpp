#include "turbo/mxfp4/mxfp4.h"
#include "turbo/operator_checks.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class Mxfp4Checks final : public OperatorChecks {
  void run() override {
    using Rm = RoundMxfp4;
    expect_checks<Rm>({.x = bf16({32, 48}), .out = bf16({32, 48})}, {&Rm::x, &Rm::out}, {},
                      {[](Rm& a) { a.hadamard = true; }, [](Rm& a) { a.offsets = i32({3}); }});
    expect_checks<Rm>({.x = bf16({32, 48}),
                       .out = bf16({50, 48}),
                       .blocks = Rm::Blocks::kColumns,
                       .offsets = i32({3}),
                       .picks = i32({50})},
                      {&Rm::x, &Rm::out, &Rm::picks}, {&Rm::offsets}, {[](Rm& a) { a.offsets = {}; }});
    const Rm random{.x = bf16({32, 48}),
                    .out = bf16({32, 48}),
                    .random = {.tokens = i32({32}), .scalars = f64({kStepScalars}), .width = 48}};
    expect_checks<Rm>(
        random, {&Rm::x, &Rm::out}, {},
        {[](Rm& a) { a.blocks = Rm::Blocks::kTiles; }, [](Rm& a) { a.random.tokens = i32({31}); },
         [](Rm& a) { a.random.scalars = f32({kStepScalars}); }, [](Rm& a) { a.random.width = 47; },
         [](Rm& a) { a.random.run_count = 4; }});
  }
};

}  // namespace

extern const OperatorCheck kMxfp4{"mxfp4", make_checks<Mxfp4Checks>};

}  // namespace primus::turbo::test
