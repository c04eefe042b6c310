#include "turbo/column_runs/column_runs.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class ColumnRunsChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    using Cc = CopyColumns;
    const Cc right{
        .from = x,
        .to = bf16({kTokens, 2}),
        .runs = {{{.from = 1, .to = 0, .groups = 2, .columns = 1, .from_stride = 2, .to_stride = 1}}},
        .run_count = 1};
    const auto run = [](auto change) { return [change](Cc& a) { change(a.runs[0]); }; };
    expect_checks<Cc>(
        right, {}, {&Cc::from, &Cc::to},
        {[](Cc& a) { a.run_count = 0; }, [](Cc& a) { a.run_count = Cc::kMaxRuns + 1; },
         [](Cc& a) {
           a.to = bf16({kTokens + 1, 2});
         },
         run([](ColumnRun& r) { r.from = -1; }), run([](ColumnRun& r) { r.to = 1; }),
         run([](ColumnRun& r) { r.groups = 0; }), run([](ColumnRun& r) { r.columns = 0; }),
         run([](ColumnRun& r) { r.from_stride = 0; }), run([](ColumnRun& r) { r.from = kWidth; })});
  }
};

}  // namespace

extern const OperatorCheck kColumnRuns{"column_runs", make_checks<ColumnRunsChecks>};

}  // namespace primus::turbo::test
