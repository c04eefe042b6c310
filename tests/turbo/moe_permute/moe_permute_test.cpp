#include "turbo/moe_permute/moe_permute.h"

#include <numeric>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Plan {
  std::vector<int> offsets, rows, slots;
};

// By the definition: slots expert by expert, in order, the kept ones only. `sequences` of so many slots.
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
      // Position by position, and in each position sequence by sequence.
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
      // Skewed: the first experts are popular, the last has nobody.
      const float u = random.uniform(static_cast<std::uint64_t>(slot));
      experts.push_back(static_cast<int>(u * u * static_cast<float>(count - 1)));
      weights.push_back(std::floor(8 * random.uniform(static_cast<std::uint64_t>(slot + 100000))) / 8);
    }
  }
};

std::vector<int> integers(const Values& values) { return {values.begin(), values.end()}; }
Values doubles(const std::vector<int>& values) { return {values.begin(), values.end()}; }

class MoePermuteTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, MoePermuteTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(MoePermuteTest, PlanRouting) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, top_k, count, sequences] :
       {std::tuple{1, 1, 2, 1}, {50, 2, 4, 1}, {50, 2, 4, 5}, {333, 6, 17, 3}}) {
    const Slots s(tokens, top_k, count, 7);
    const Tensor experts = bench.upload(doubles(s.experts), DType::kI32, {tokens, top_k});
    const Tensor weights = bench.upload(s.weights, DType::kF32, {tokens, top_k});
    for (const int capacity : {0, 1, 5, 40}) {
      for (const bool by_weight : {false, true}) {
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
        Values gathered(rows.size()), combined = previous, dots(static_cast<std::size_t>(slots));
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
