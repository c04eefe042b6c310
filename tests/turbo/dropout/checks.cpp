#include "turbo/dropout/dropout.h"
#include "turbo/operator_checks.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class DropoutChecks final : public OperatorChecks {
  void run() override {
    const auto runs_backwards = [](Dropout& a) { a.run_count = 2, a.runs = {{{0, 0}, {0, 4}, {}}}; };
    expect_checks<Dropout>({.x = bf16({kTokens, kWidth}),
                            .out = bf16({kTokens, kWidth}),
                            .tokens = i32({kTokens}),
                            .scalars = f64({kStepScalars}),
                            .rate = 0.1F},
                           {&Dropout::x, &Dropout::out, &Dropout::tokens, &Dropout::scalars}, {},
                           {[](Dropout& a) { a.rate = 0; }, [](Dropout& a) { a.rate = 1; },
                            [](Dropout& a) { a.run_count = Dropout::kMaxRuns + 1; }, runs_backwards});
  }
};

}  // namespace

extern const OperatorCheck kDropout{"dropout", make_checks<DropoutChecks>};

}  // namespace primus::turbo::test
