#include "turbo/operator_checks.h"
#include "turbo/row_adapters/row_adapters.h"

namespace primus::turbo::test {
namespace {

class RowAdaptersChecks final : public OperatorChecks {
  void run() override {
    using Ra = AddRowAdapters;
    const Tensor table(nullptr, DType::kI64, {3, 2, RowAdapter::kWords});
    expect_checks<Ra>({.x = bf16({kTokens, kWidth}),
                       .y = bf16({kTokens, 3 * kWidth}),
                       .models = i32({kTokens}),
                       .table = table,
                       .low_columns = 16,
                       .workspace = {}},
                      {&Ra::models, &Ra::table}, {&Ra::x, &Ra::y},
                      {[](Ra& a) { a.low_columns = 12; }, [](Ra& a) { a.low_columns = 0; },
                       [](Ra& a) {
                         a.y = bf16({kTokens + 1, kWidth});
                       }});
  }
};

}  // namespace

extern const OperatorCheck kRowAdapters{"row_adapters", make_checks<RowAdaptersChecks>};

}  // namespace primus::turbo::test
