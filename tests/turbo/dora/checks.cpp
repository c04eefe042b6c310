#include "turbo/dora/dora.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class DoraChecks final : public OperatorChecks {
  void run() override {
    constexpr std::int64_t kRank = 3;
    const Tensor x = bf16({kTokens, kWidth}), per_column = bf16({kWidth}), square = f32({kWidth});
    expect_checks<DoraNorm>(
        {.w = x, .down = bf16({kRank, kWidth}), .up = bf16({kTokens, kRank}), .square = f32({kTokens})},
        {&DoraNorm::w, &DoraNorm::down, &DoraNorm::up, &DoraNorm::square});
    const DoraScale scale{.x = x, .magnitude = per_column, .square = square, .y = x};
    expect_checks<DoraScale>(scale,
                             {&DoraScale::x, &DoraScale::magnitude, &DoraScale::square, &DoraScale::y});
    using Bw = DoraBackwardMagnitude;
    expect_checks<Bw>({.x = x, .d_y = x, .square = square, .d_magnitude = square},
                      {&Bw::x, &Bw::d_y, &Bw::square, &Bw::d_magnitude});
  }
};

}  // namespace

extern const OperatorCheck kDora{"dora", make_checks<DoraChecks>};

}  // namespace primus::turbo::test
