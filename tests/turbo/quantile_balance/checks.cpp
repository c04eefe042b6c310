#include "turbo/operator_checks.h"
#include "turbo/quantile_balance/quantile_balance.h"

namespace primus::turbo::test {
namespace {

class QuantileBalanceChecks final : public OperatorChecks {
  void run() override {
    using Mh = MarginHistogram;
    const MarginBins bins{.low = -1, .high = 1};
    const auto no_range = [](auto& a) { a.bins.high = -1; };
    const auto all_chosen = [](auto& a) { a.top_k = 9; };
    expect_checks<Mh>({.bins = bins,
                       .top_k = 2,
                       .logits = f32({kTokens, 8}),
                       .bias = f32({8}),
                       .counts = i32({8, 16}),
                       .workspace = {}},
                      {&Mh::logits, &Mh::bias}, {&Mh::counts}, {no_range, all_chosen});
    using Qb = QuantileBiasUpdate;
    expect_checks<Qb>(
        {.bins = bins, .top_k = 2, .counts = i32({8, 16}), .bias = f32({8}), .centred = true, .kept = 0},
        {&Qb::bias}, {&Qb::counts}, {no_range, all_chosen, [](Qb& a) { a.kept = 1; }});
  }
};

}  // namespace

extern const OperatorCheck kQuantileBalance{"quantile_balance", make_checks<QuantileBalanceChecks>};

}  // namespace primus::turbo::test
