#include "turbo/fp8_rows/fp8_rows.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class Fp8RowsChecks final : public OperatorChecks {
  void run() override {
    constexpr std::int64_t kCols = 208, kRows = 5;
    const Tensor list = i32({kRows, 1}), numbers = bf16({kRows, kCols});
    const Tensor encoded(nullptr, DType::kU8, {kRows, Fp8RowLayout{kCols}.bytes()});
    const Tensor narrow(nullptr, DType::kU8, {kRows, Fp8RowLayout{kCols}.bytes() - 16});
    using Er = EncodeRows;
    expect_checks<Er>({.x = numbers, .rows = list, .out = encoded}, {&Er::x, &Er::rows, &Er::out}, {},
                      {[=](Er& a) { a.out = narrow; }});
    using Dr = DecodeRows;
    expect_checks<Dr>({.x = encoded, .used = list, .out = numbers}, {&Dr::x, &Dr::used, &Dr::out}, {},
                      {[=](Dr& a) { a.x = narrow; }});
  }
};

}  // namespace

extern const OperatorCheck kFp8Rows{"fp8_rows", make_checks<Fp8RowsChecks>};

}  // namespace primus::turbo::test
