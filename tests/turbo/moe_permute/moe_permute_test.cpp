#include "turbo/moe_permute/moe_permute.h"

#include <numeric>

#include "turbo/device_names.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Plan {
  std::vector<int> offsets, rows, slots;
};

// Computes the plan by definition: the slots that are kept, ordered by expert, then by index. Slots belong to
// `sequences` sequences of equal length.
Plan reference_plan(const std::vector<int>& experts, const Values& weights, int expert_count, int capacity,
                    bool by_weight, int top_k = 1, int sequences = 1) {
  Plan plan;
  plan.rows.assign(experts.size(), -1);
  plan.offsets = {0};
  for (int e = 0; e < expert_count; ++e) {
    std::vector<int> mine;
    for (std::size_t slot = 0; slot < experts.size(); ++slot) {
      if (experts[slot] == e) mine.push_back(static_cast<int>(slot));
    }
    if (capacity > 0 && static_cast<int>(mine.size()) > capacity) {
      // Orders slots by position, and slots of one position by sequence.
      const int positions = static_cast<int>(experts.size()) / top_k / sequences;
      std::stable_sort(mine.begin(), mine.end(),
                       [&](int x, int y) { return x / top_k % positions < y / top_k % positions; });
      if (by_weight) {
        std::stable_sort(mine.begin(), mine.end(), [&](int x, int y) {
          return weights[static_cast<std::size_t>(x)] > weights[static_cast<std::size_t>(y)];
        });
      }
      mine.resize(static_cast<std::size_t>(capacity));
      std::sort(mine.begin(), mine.end());
    }
    for (const int slot : mine) {
      plan.rows[static_cast<std::size_t>(slot)] = static_cast<int>(plan.slots.size());
      plan.slots.push_back(slot);
    }
    plan.offsets.push_back(static_cast<int>(plan.slots.size()));
  }
  return plan;
}

struct Slots {
  std::int64_t tokens, top_k;
  int expert_count;
  std::vector<int> experts;
  Values weights;

  Slots(std::int64_t token_count, std::int64_t choices, int count, std::uint64_t seed)
      : tokens(token_count), top_k(choices), expert_count(count) {
    const RandomStream random(seed, RandomPurpose::kTest);
    for (std::int64_t slot = 0; slot < tokens * top_k; ++slot) {
      // The distribution is skewed: the first experts get most of the slots, and the last expert gets none.
      const float u = random.uniform(static_cast<std::uint64_t>(slot));
      experts.push_back(static_cast<int>(u * u * static_cast<float>(count - 1)));
      weights.push_back(std::floor(8 * random.uniform(static_cast<std::uint64_t>(slot + 100000))) / 8);
    }
  }
};

std::vector<int> integers(const Values& values) { return {values.begin(), values.end()}; }
Values doubles(const std::vector<int>& values) { return {values.begin(), values.end()}; }

class MoePermuteTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, MoePermuteTest, ::testing::ValuesIn(devices_under_test()), device_name);

// Each rank sends a token once to each rank that has one of the token's experts. The row indices of all ranks
// are consistent.
TEST_P(MoePermuteTest, PlanDispatch) {
  OperatorBench bench(GetParam());
  struct Case {
    int ranks, tokens, top_k, experts, ranks_of_expert;
    bool drops;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 1, false},
                        {2, 7, 2, 4, 1, true},
                        {4, 300, 3, 8, 2, true},
                        {8, 33, 2, 16, 1, false}}) {
    const Slots s(c.ranks * c.tokens, c.top_k, c.experts, 11);
    const int of_rank = c.experts * c.ranks_of_expert / c.ranks;
    std::vector<int> kept;
    for (std::size_t i = 0; i < s.experts.size(); ++i) kept.push_back(i % 5 == 0 ? -1 : static_cast<int>(i));
    const auto chosen = [&](int slot, int rank) {
      return (!c.drops || kept[static_cast<std::size_t>(slot)] >= 0) &&
             s.experts[static_cast<std::size_t>(slot)] / of_rank == rank / c.ranks_of_expert;
    };
    const auto goes = [&](int token, int rank) {
      bool any = false;
      for (int k = 0; k < c.top_k; ++k) any = any || chosen(token * c.top_k + k, rank);
      return any;
    };
    const Shape slots{s.tokens, c.top_k};
    const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, slots);
    const Tensor dropped = c.drops ? bench.upload(doubles(kept), DType::kI32, slots) : Tensor();
    // The number of tokens of a rank is always a sufficient number of rows. `fullest` is the largest number
    // of rows that one rank sends to another rank.
    int fullest = 0;
    for (int from = 0; from < c.ranks; ++from) {
      for (int to = 0; to < c.ranks; ++to) {
        int rows = 0;
        for (int t = 0; t < c.tokens; ++t) rows += goes(from * c.tokens + t, to) ? 1 : 0;
        fullest = std::max(fullest, rows);
      }
    }
    for (const int maximum : {c.tokens, fullest}) {
      for (const int rank : {0, c.ranks - 1}) {
        SCOPED_TRACE(testing::Message() << c.ranks << " ranks, rank " << rank << ", maximum " << maximum);
        const Tensor plan =
            bench.empty(DType::kI32, DispatchPlan::shape(c.ranks, c.tokens, c.top_k, maximum));
        const PlanDispatch call{.experts = experts,
                                .kept = dropped,
                                .plan = plan,
                                .ranks = c.ranks,
                                .rank = rank,
                                .maximum = maximum,
                                .experts_of_rank = of_rank,
                                .ranks_of_expert = c.ranks_of_expert};
        bench.run(call);
        const auto rows = static_cast<std::size_t>(c.ranks * maximum);
        std::vector<int> sends, receives, sent(rows, -1), sources(rows, -1),
            choices(rows * static_cast<std::size_t>(c.top_k), -1);
        std::vector<int> parts(static_cast<std::size_t>(c.tokens * c.ranks), -1),
            places(static_cast<std::size_t>(c.tokens * c.ranks), -1);
        for (int peer = 0; peer < c.ranks; ++peer) {
          int out = 0, in = 0;
          for (int t = 0; t < c.tokens; ++t) {
            const int row_out = peer * maximum + out, row_in = peer * maximum + in,
                      other = peer * c.tokens + t;
            if (goes(rank * c.tokens + t, peer)) {
              sent[static_cast<std::size_t>(row_out)] = t;
              parts[static_cast<std::size_t>(t * c.ranks + peer)] = row_out;
              ++out;
            }
            if (!goes(other, rank)) continue;
            sources[static_cast<std::size_t>(row_in)] = other;
            places[static_cast<std::size_t>(other)] = row_in;
            for (int k = 0; k < c.top_k; ++k) {
              const int slot = other * c.top_k + k;
              if (chosen(slot, rank))
                choices[static_cast<std::size_t>(row_in * c.top_k + k)] =
                    s.experts[static_cast<std::size_t>(slot)];
            }
            ++in;
          }
          sends.push_back(out);
          receives.push_back(in);
        }
        const DispatchPlan made = call.parts();
        EXPECT_EQ(integers(bench.download(made.sends)), sends);
        EXPECT_EQ(integers(bench.download(made.receives)), receives);
        EXPECT_EQ(integers(bench.download(made.sent)), sent);
        EXPECT_EQ(integers(bench.download(made.parts)), parts);
        EXPECT_EQ(integers(bench.download(made.sources)), sources);
        EXPECT_EQ(integers(bench.download(made.places)), places);
        EXPECT_EQ(integers(bench.download(made.choices)), choices);
      }
    }
  }
}

// The two plans of rows that travel to each host once, and from there to the ranks of the host. Tokens are
// numbered by place on the host, then host, then position.
struct TwoHops {
  int hosts, places, tokens, top_k, experts, ranks_of_expert;

  int of_rank() const { return experts * ranks_of_expert / (hosts * places); }
  int of_place() const { return hosts * tokens; }  // tokens of the ranks with one place
};

struct Transfers {
  std::vector<int> sends, receives, sent, parts, sources, places;

  // Lists the rows from this rank to `peers` peers, and from these peers to this rank. `sends(row, peer)`:
  // whether the rank's row goes to the peer; `comes(peer, token)`: whether the token comes from the peer.
  template <class Sends, class Comes>
  Transfers(int peers, int maximum, int rows, int tokens, Sends goes, Comes comes)
      : sent(static_cast<std::size_t>(peers * maximum), -1),
        parts(static_cast<std::size_t>(rows * peers), -1),
        sources(sent),
        places(static_cast<std::size_t>(tokens * peers), -1) {
    for (int peer = 0; peer < peers; ++peer) {
      int out = peer * maximum, in = out;
      for (int row = 0; row < rows; ++row) {
        if (!goes(row, peer)) continue;
        parts[static_cast<std::size_t>(row * peers + peer)] = out;
        sent[static_cast<std::size_t>(out++)] = row;
      }
      for (int t = 0; t < tokens; ++t) {
        if (!comes(peer, t)) continue;
        places[static_cast<std::size_t>(peer * tokens + t)] = in;
        sources[static_cast<std::size_t>(in++)] = peer * tokens + t;
      }
      sends.push_back(out - peer * maximum);
      receives.push_back(in - peer * maximum);
    }
  }
};

void expect_transfers(OperatorBench& bench, const PlanDispatch& call, const Transfers& wanted) {
  const DispatchPlan made = call.parts();
  EXPECT_EQ(integers(bench.download(made.sends)), wanted.sends);
  EXPECT_EQ(integers(bench.download(made.receives)), wanted.receives);
  EXPECT_EQ(integers(bench.download(made.sent)), wanted.sent);
  EXPECT_EQ(integers(bench.download(made.parts)), wanted.parts);
  EXPECT_EQ(integers(bench.download(made.sources)), wanted.sources);
  EXPECT_EQ(integers(bench.download(made.places)), wanted.places);
}

TEST_P(MoePermuteTest, PlanDispatchInTwoHops) {
  OperatorBench bench(GetParam());
  for (const TwoHops& c : {TwoHops{2, 2, 9, 2, 8, 1}, {2, 4, 21, 3, 16, 2}, {3, 2, 7, 1, 4, 3}}) {
    const Slots s(c.places * c.of_place(), c.top_k, c.experts, 5);
    const auto slot = [&](int token, int k) { return static_cast<std::size_t>(token * c.top_k + k); };
    const auto has = [&](int rank, int token, int k) {
      return s.experts[slot(token, k)] / c.of_rank() == rank / c.ranks_of_expert;
    };
    // Return whether a token goes to a rank, and to any rank of a host.
    const auto to_rank = [&](int token, int rank) {
      for (int k = 0; k < c.top_k; ++k)
        if (has(rank, token, k)) return true;
      return false;
    };
    const auto to_host = [&](int token, int host) {
      for (int place = 0; place < c.places; ++place)
        if (to_rank(token, host * c.places + place)) return true;
      return false;
    };
    const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, {s.tokens, c.top_k});
    const int rows = c.hosts * c.tokens;
    for (const auto& [host, place] : {std::pair(0, c.places - 1), std::pair(c.hosts - 1, 0)}) {
      SCOPED_TRACE(testing::Message() << c.hosts << " hosts, host " << host << ", place " << place);
      const int first = place * c.of_place();  // the first token of this place
      PlanDispatch call{
          .experts = experts.slice(first, first + c.of_place()),
          .kept = {},
          .plan = bench.empty(DType::kI32, DispatchPlan::shape(c.hosts, c.tokens, c.top_k, c.tokens)),
          .ranks = c.hosts,
          .rank = host,
          .maximum = c.tokens,
          .experts_of_rank = c.of_rank(),
          .ranks_of_expert = c.ranks_of_expert,
          .first = 0,
          .span = c.places};
      bench.run(call);
      const Transfers between(
          c.hosts, c.tokens, c.tokens, c.tokens,
          [&](int row, int peer) { return to_host(first + host * c.tokens + row, peer); },
          [&](int peer, int t) { return to_host(first + peer * c.tokens + t, host); });
      expect_transfers(bench, call, between);

      call = {.experts = experts,
              .kept = {},
              .plan = bench.empty(DType::kI32,
                                  DispatchPlan::shape(c.places, c.of_place(), c.top_k, c.of_place(), rows)),
              .ranks = c.places,
              .rank = place,
              .maximum = c.of_place(),
              .experts_of_rank = c.of_rank(),
              .ranks_of_expert = c.ranks_of_expert,
              .first = host * c.places,
              .span = 1,
              .held = call.parts().sources};
      bench.run(call);
      const int rank = host * c.places + place;
      const Transfers within(
          c.places, c.of_place(), rows, c.of_place(),
          [&](int row, int peer) {
            const int token = between.sources[static_cast<std::size_t>(row)];
            return token >= 0 && to_rank(first + token, host * c.places + peer);
          },
          [&](int peer, int t) { return to_rank(peer * c.of_place() + t, rank); });
      expect_transfers(bench, call, within);
      std::vector<int> choices;
      for (const int token : within.sources) {
        for (int k = 0; k < c.top_k; ++k)
          choices.push_back(token >= 0 && has(rank, token, k) ? s.experts[slot(token, k)] : -1);
      }
      EXPECT_EQ(integers(bench.download(call.parts().choices)), choices);
    }
  }
}

TEST_P(MoePermuteTest, PlanRouting) {
  OperatorBench bench(GetParam());
  struct Case {
    int tokens, top_k, count, sequences;
    // 0: unlimited. The emulated GPU is slow, so large cases have only two capacities.
    std::vector<int> capacities;
  };
  for (const auto& [tokens, top_k, count, sequences, capacities] : {Case{1, 1, 2, 1, {0, 1, 5, 40}},
                                                                    {50, 2, 4, 1, {0, 1, 5, 40}},
                                                                    {50, 2, 4, 5, {0, 1, 5, 40}},
                                                                    {64, 8, 600, 1, {0, 2}},
                                                                    {333, 6, 17, 3, {0, 40}},
                                                                    {700, 3, 300, 1, {0, 12}}}) {
    const Slots s(tokens, top_k, count, 7);
    const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, {tokens, top_k});
    const Tensor weights = bench.upload(s.weights, DType::kF32, {tokens, top_k});
    for (const int capacity : capacities) {
      for (const bool by_weight : {false, true}) {
        // Without a capacity, kernels do not read weights. Only the small cases test this combination.
        if (by_weight && capacity == 0 && tokens > 50) continue;
        const Tensor plan = bench.empty(DType::kI32, RoutingPlan::shape(count, tokens, top_k));
        bench.run(PlanRouting{.experts = experts,
                              .weights = by_weight ? weights : Tensor(),
                              .plan = plan,
                              .expert_count = count,
                              .capacity = capacity,
                              .sequences = sequences});
        const Plan expected =
            reference_plan(s.experts, s.weights, count, capacity, by_weight, top_k, sequences);
        const RoutingPlan view(plan, count, tokens, top_k);
        EXPECT_EQ(integers(bench.download(view.offsets)), expected.offsets);
        EXPECT_EQ(integers(bench.download(view.rows)), expected.rows);
        std::vector<int> slots = integers(bench.download(view.slots));
        slots.resize(expected.slots.size());
        EXPECT_EQ(slots, expected.slots);
        const std::vector<int> tokens_of_rows = integers(bench.download(view.tokens));
        for (std::size_t row = 0; row < slots.size(); ++row)
          EXPECT_EQ(tokens_of_rows[row], slots[row] / top_k);
      }
    }
  }
}

// A plan for a subset of the experts has the rows that these experts have in the complete plan. Slots that
// the complete plan has dropped stay dropped.
TEST_P(MoePermuteTest, APlanForSomeExperts) {
  OperatorBench bench(GetParam());
  for (const std::int64_t tokens : {200, 30}) {
    const std::int64_t top_k = 3, count = 9;
    const Slots s(tokens, top_k, count, 11);
    const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, {tokens, top_k});
    const Tensor whole = bench.empty(DType::kI32, RoutingPlan::shape(count, tokens, top_k));
    for (const int capacity : {0, 20}) {
      bench.run(PlanRouting{
          .experts = experts, .weights = {}, .plan = whole, .expert_count = count, .capacity = capacity});
      const RoutingPlan all(whole, count, tokens, top_k);
      const std::vector<int> rows = integers(bench.download(all.rows)),
                             offsets = integers(bench.download(all.offsets)),
                             slots = integers(bench.download(all.slots));
      for (const auto& [first, own] : {std::pair{0, 2}, {2, 3}, {5, 4}, {0, 9}}) {
        const int begin = offsets[static_cast<std::size_t>(first)];
        const int end = offsets[static_cast<std::size_t>(first + own)];
        // The plan has exactly the number of rows that is needed.
        const Tensor plan = bench.empty(DType::kI32, RoutingPlan::shape(own, tokens, top_k, end - begin));
        bench.run(PlanRouting{.experts = experts,
                              .weights = {},
                              .kept = capacity > 0 ? all.rows : Tensor(),
                              .plan = plan,
                              .expert_count = own,
                              .capacity = 0,
                              .first = first,
                              .all = count});
        const RoutingPlan view(plan, own, tokens, top_k);
        std::vector<int> expected;
        for (const int row : rows) expected.push_back(row >= begin && row < end ? row - begin : -1);
        EXPECT_EQ(integers(bench.download(view.rows)), expected);
        const std::vector<int> mine(slots.begin() + begin, slots.begin() + end);
        EXPECT_EQ(integers(bench.download(view.slots)), mine);
        std::vector<int> starts;
        for (int e = first; e <= first + own; ++e)
          starts.push_back(offsets[static_cast<std::size_t>(e)] - begin);
        EXPECT_EQ(integers(bench.download(view.offsets)), starts);
        const std::vector<int> token_of_row = integers(bench.download(view.tokens));
        for (std::size_t row = 0; row < mine.size(); ++row) EXPECT_EQ(token_of_row[row], mine[row] / 3);
      }
    }
  }
}

// The first part has the first experts, up to the last expert whose rows fit into this part. Each part equals
// the whole plan restricted to the experts of the part. Sums of rows from two tensors have the same bits as
// sums of rows from one tensor.
TEST_P(MoePermuteTest, APlanInTwoParts) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 200, top_k = 3, count = 9, slots = tokens * top_k, hidden = 24;
  const Slots s(tokens, top_k, count, 11);
  const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, {tokens, top_k});
  const auto plan_for = [&](std::int64_t rows) {
    return bench.empty(DType::kI32, RoutingPlan::shape(count, tokens, top_k, rows));
  };
  const Plan whole = reference_plan(s.experts, s.weights, count, 0, false);
  const Tensor x =
      bench.upload(rounded(random_values(slots * hidden, 2), DType::kBF16), DType::kBF16, {slots, hidden});
  for (const int space :
       {1, whole.offsets[2] - 1, whole.offsets[2], whole.offsets[5] + 1, static_cast<int>(slots)}) {
    SCOPED_TRACE(space);
    const Tensor plan = plan_for(slots), head = plan_for(space), rest = plan_for(slots);
    const PlanRouting call{.experts = experts,
                           .weights = {},
                           .plan = plan,
                           .expert_count = count,
                           .capacity = 0,
                           .head = head,
                           .rest = rest};
    bench.run(call);
    int fitting = 0;
    while (fitting < count && whole.offsets[static_cast<std::size_t>(fitting) + 1] <= space) ++fitting;
    const int cut = whole.offsets[static_cast<std::size_t>(fitting)];
    for (const bool first : {true, false}) {
      const RoutingPlan part = call.parts_of(first ? head : rest);
      std::vector<int> offsets, rows;
      for (const int offset : whole.offsets)
        offsets.push_back(first ? std::min(offset, cut) : std::max(offset, cut) - cut);
      for (const int row : whole.rows) rows.push_back((row < cut) == first ? row - (first ? 0 : cut) : -1);
      EXPECT_EQ(integers(bench.download(part.offsets)), offsets);
      EXPECT_EQ(integers(bench.download(part.rows)), rows);
      const std::vector<int> mine(whole.slots.begin() + (first ? 0 : cut),
                                  first ? whole.slots.begin() + cut : whole.slots.end());
      std::vector<int> made = integers(bench.download(part.slots));
      made.resize(mine.size());
      EXPECT_EQ(made, mine);
      const std::vector<int> token_of_row = integers(bench.download(part.tokens));
      for (std::size_t row = 0; row < mine.size(); ++row) EXPECT_EQ(token_of_row[row], mine[row] / 3);
    }
    const Tensor together = bench.empty(DType::kBF16, {tokens, hidden});
    bench.run(CombineRows{
        .x = x, .rows = call.parts_of(plan).rows, .weights = {}, .previous = {}, .out = together});
    const Tensor apart = bench.empty(DType::kBF16, {tokens, hidden});
    // `x` has the rows of the first part, and `more` has the rows of the second part.
    bench.run(CombineRows{.x = x.slice(0, std::max(cut, 1)),
                          .rows = call.parts_of(head).rows,
                          .weights = {},
                          .previous = {},
                          .out = apart,
                          .more = x.slice(std::min<std::int64_t>(cut, slots - 1), slots),
                          .more_rows = call.parts_of(rest).rows});
    EXPECT_EQ(bench.download(apart), bench.download(together));
  }
}

TEST_P(MoePermuteTest, GatherCombineAndDots) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [hidden, capacity] : {std::pair{1, 0}, {48, 0}, {300, 9}}) {
      const std::int64_t tokens = 40, top_k = 3, count = 6, slots = tokens * top_k;
      const Slots s(tokens, top_k, count, 9);
      const Plan expected_plan = reference_plan(s.experts, s.weights, count, capacity, false);
      const Tensor plan = bench.empty(DType::kI32, RoutingPlan::shape(count, tokens, top_k));
      bench.run(PlanRouting{.experts = bench.upload(doubles(s.experts), DType::kI32, {tokens, top_k}),
                            .weights = {},
                            .plan = plan,
                            .expert_count = count,
                            .capacity = capacity});
      const RoutingPlan view(plan, count, tokens, top_k);
      const Values x = rounded(random_values(tokens * hidden, 1), dtype);
      const Values rows = rounded(random_values(slots * hidden, 2), dtype);
      const Values previous = rounded(random_values(tokens * hidden, 3), dtype);
      const Tensor x_device = bench.upload(x, dtype, {tokens, hidden});
      const Tensor rows_device = bench.upload(rows, dtype, {slots, hidden});
      for (const bool weighted : {false, true}) {
        Values gathered(rows.size(), NAN), combined = previous, dots(static_cast<std::size_t>(slots));
        for (std::int64_t slot = 0; slot < slots; ++slot) {
          const int row = expected_plan.rows[static_cast<std::size_t>(slot)];
          if (row < 0) continue;
          const double w = weighted ? s.weights[static_cast<std::size_t>(slot)] : 1;
          for (std::int64_t i = 0; i < hidden; ++i) {
            const auto at_row = static_cast<std::size_t>(row * hidden + i);
            const auto at_token = static_cast<std::size_t>(slot / top_k * hidden + i);
            gathered[at_row] = w * x[at_token];
            combined[at_token] += w * rows[at_row];
            dots[static_cast<std::size_t>(slot)] += x[at_token] * rows[at_row];
          }
        }
        const Tensor of_slots = bench.upload(s.weights, DType::kF32, {tokens, top_k});
        const Tensor weights = weighted ? of_slots : Tensor();
        const Tensor out = bench.empty(dtype, {slots, hidden});
        if (weighted) {
          bench.run(GatherRows{.x = x_device,
                               .offsets = view.offsets,
                               .rows = view.rows,
                               .slots = view.slots,
                               .weights = weights,
                               .out = out});
          EXPECT_LE(normalised_error(bench.download(out), gathered), rounding_error(dtype));
        }
        const Tensor sum = bench.upload(previous, dtype, {tokens, hidden});
        bench.run(CombineRows{
            .x = rows_device, .rows = view.rows, .weights = weights, .previous = sum, .out = sum});
        EXPECT_LE(normalised_error(bench.download(sum), combined), rounding_error(dtype) + 3e-7);
        const Tensor products = bench.empty(DType::kF32, {tokens, top_k});
        bench.run(RowDots{
            .by_token = x_device, .by_row = rows_device, .rows = view.rows, .previous = {}, .out = products});
        EXPECT_LE(normalised_error(bench.download(products), dots), 2e-6);
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
