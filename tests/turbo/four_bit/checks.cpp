#include "turbo/four_bit/four_bit.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class FourBitChecks final : public OperatorChecks {
  static Tensor u8(Shape shape) { return {nullptr, DType::kU8, shape}; }

  void run() override {
    using Call = ExpandFourBit;
    const auto odd_block = [](Call& a) { a.block = 63; };
    expect_checks<Call>({.packed = u8({2, 81}),
                         .factors = f32({2, 3}),
                         .table = f32({kFourBitCodes}),
                         .out = bf16({2, 162}),
                         .block = 64},
                        {&Call::packed, &Call::factors, &Call::table, &Call::out}, {}, {odd_block});
    expect_checks<Call>(
        {.packed = u8({2, 81}),
         .factors = f32({2, 1}),
         .codes = u8({2, 3}),
         .offset = f32({2}),
         .table = f32({kFourBitCodes + kNestedCodes}),
         .out = f32({2, 162}),
         .block = 64},
        {&Call::packed, &Call::factors, &Call::codes, &Call::offset, &Call::table, &Call::out}, {},
        {odd_block, [](Call& a) { a.offset = {}; }, [](Call& a) { a.codes = {}; }});
  }
};

}  // namespace

extern const OperatorCheck kFourBit{"four_bit", make_checks<FourBitChecks>};

}  // namespace primus::turbo::test
