#include "turbo/moe_permute/moe_permute.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class MoePermuteChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor by_row = bf16({kSlots, kWidth});
    const Tensor chosen = i32({kTokens, kTopK});
    const Tensor weights = f32({kTokens, kTopK});
    const Tensor offsets = i32({kExperts + 1});
    const Tensor slots = i32({kSlots});
    using Pr = PlanRouting;
    expect_checks<Pr>({.experts = chosen,
                       .weights = weights,
                       .kept = chosen,
                       .plan = i32(RoutingPlan::shape(kExperts, kTokens, kTopK)),
                       .expert_count = kExperts,
                       .capacity = 0},
                      {&Pr::experts, &Pr::weights, &Pr::kept, &Pr::plan}, {},
                      {[](Pr& a) { a.expert_count += 1; }, [](Pr& a) { a.sequences = 5; },
                       [](Pr& a) { a.capacity = -1; }, [](Pr& a) { a.first = 1; }});
    expect_checks<Pr>(
        {.experts = chosen,
         .plan = i32(RoutingPlan::shape(kExperts, kTokens, kTopK, kSlots / 2)),
         .expert_count = kExperts,
         .capacity = 0,
         .first = kExperts,
         .all = 2 * kExperts},
        {&Pr::plan}, {&Pr::experts},
        {[](Pr& a) { a.first += 1; }, [](Pr& a) { a.first = -1; }, [](Pr& a) { a.all = 0, a.first = 0; }});
    expect_checks<Pr>({.experts = chosen,
                       .plan = i32(RoutingPlan::shape(kExperts, kTokens, kTopK)),
                       .expert_count = kExperts,
                       .capacity = 0,
                       .head = i32(RoutingPlan::shape(kExperts, kTokens, kTopK, kSlots / 2)),
                       .rest = i32(RoutingPlan::shape(kExperts, kTokens, kTopK))},
                      {&Pr::head, &Pr::rest}, {&Pr::experts, &Pr::plan});
    constexpr std::int64_t kRanks = 2;
    constexpr std::int64_t kMax = 3;
    using Pd = PlanDispatch;
    expect_checks<Pd>({.experts = chosen,
                       .kept = chosen,
                       .plan = i32(DispatchPlan::shape(kRanks, kTokens / kRanks, kTopK, kMax)),
                       .ranks = kRanks,
                       .rank = 1,
                       .maximum = kMax,
                       .experts_of_rank = kExperts / kRanks,
                       .ranks_of_expert = 1},
                      {&Pd::experts, &Pd::kept, &Pd::plan}, {},
                      {[](Pd& a) { a.rank = a.ranks; }, [](Pd& a) { a.maximum = a.tokens() + 1; },
                       [](Pd& a) { a.ranks_of_expert = 0; }, [](Pd& a) { a.span = 0; },
                       [](Pd& a) { a.first = -1; }, [&](Pd& a) { a.held = i32({kTokens}); }});
    using Gr = GatherRows;
    expect_checks<Gr>(
        {.x = x, .offsets = offsets, .rows = chosen, .slots = slots, .weights = weights, .out = by_row},
        {&Gr::x, &Gr::rows, &Gr::slots, &Gr::weights, &Gr::out}, {&Gr::offsets});
    using Cr = CombineRows;
    expect_checks<Cr>({.x = by_row, .rows = chosen, .weights = weights, .previous = x, .out = x},
                      {&Cr::x, &Cr::rows, &Cr::weights, &Cr::previous, &Cr::out});
    expect_checks<Cr>({.x = by_row, .rows = chosen, .out = x, .more = by_row, .more_rows = chosen},
                      {&Cr::more, &Cr::more_rows}, {&Cr::x, &Cr::rows, &Cr::out});
    using Rd = RowDots;
    expect_checks<Rd>({.by_token = x, .by_row = by_row, .rows = chosen, .previous = weights, .out = weights},
                      {&Rd::by_token, &Rd::by_row, &Rd::rows, &Rd::previous, &Rd::out}, {},
                      {[](Rd& a) { a.out = {}; }});
  }
};

}  // namespace

extern const OperatorCheck kMoePermute{"moe_permute", make_checks<MoePermuteChecks>};

}  // namespace primus::turbo::test
