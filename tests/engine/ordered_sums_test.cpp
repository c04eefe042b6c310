// Tests sums over ranks in one order, on groups whose own sums have another order for each position.
#include "engine/parallel/ordered_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/staged_group.h"
#include "engine/device_values.h"
#include "engine/parallel/parallel_operators.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"
#include "engine/thread_ranks.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

constexpr std::int64_t kRows = 2, kWidth = 33;  // kRows: per rank

// Returns the sum of numbers [first, first + count), in the order of comm/communicator.h.
float sum_of(const std::vector<float>& parts, std::size_t first, std::size_t count) {
  if (count == 1) return parts[first];
  const std::size_t half = std::bit_ceil(count) / 2;
  return sum_of(parts, first, half) + sum_of(parts, first + half, count - half);
}

struct Sums {
  std::vector<float> own;  // this rank's rows
  std::int64_t scatters = 0, exchanges = 0;
};

// Runs scatter_tokens() on a rank that was measured before, in exactly the measured memory.
Sums scattered(Mesh mesh, int number) {
  Rank rank(turbo::make_cpu_device(1), std::move(mesh));
  Sums sums;
  const auto run = [&] {
    const int ranks = rank.mesh().tensor()->size();
    Tape tape(rank.context(), rank.stash());
    tape.begin({.train = false});
    const Value x = tape.input(DType::kF32, {ranks * kRows, kWidth}, false);
    if (!rank.measuring())
      test::write(rank, x.tensor(),
                  test::numbers(ranks * kRows * kWidth, static_cast<std::uint64_t>(number)));
    const Value y = scatter_tokens(x, rank.mesh().tensor());
    if (!rank.measuring()) sums.own = test::read(rank, y.tensor());
  };
  run();
  const MemoryPlan plan = rank.high_water();
  rank.reserve(plan);
  run();
  EXPECT_EQ(rank.high_water().scratch, plan.scratch);
  const comm::Traffic traffic = rank.mesh().tensor()->traffic();
  sums.scatters = traffic[comm::Kind::kReduceScatter].calls;
  sums.exchanges = traffic[comm::Kind::kAllToAll].calls;
  return sums;
}

// Returns the number of elements whose sums have not the bits of the order of CPUs.
int differing(const std::vector<Sums>& all) {
  const std::size_t ranks = all.size();
  std::vector<std::vector<float>> inputs;
  for (std::size_t r = 0; r < ranks; ++r)
    inputs.push_back(test::numbers(static_cast<std::int64_t>(ranks) * kRows * kWidth, r));
  int count = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(all[r].own.size(), static_cast<std::size_t>(kRows * kWidth));
    for (std::size_t i = 0; i < all[r].own.size(); ++i) {
      std::vector<float> parts;
      for (const std::vector<float>& input : inputs) parts.push_back(input[r * kRows * kWidth + i]);
      count += all[r].own[i] != sum_of(parts, 0, ranks) ? 1 : 0;
    }
  }
  return count;
}

std::vector<Sums> on_group(int ranks, bool ordered) {
  auto worlds = comm::test::make_staged_group(ranks);
  for (const std::unique_ptr<comm::Communicator>& world : worlds) world->set_ordered_sums(ordered);
  return test::on_ranks_of<Sums>(std::move(worlds), {.tensor = ranks}, scattered);
}

TEST(OrderedSums, HaveTheOrderOfCpus) {
  for (const int ranks : {3, 4, 5, 8}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const std::vector<Sums> ordered = on_group(ranks, true);
    EXPECT_EQ(differing(ordered), 0);
    EXPECT_EQ(ordered.front().scatters, 0);
    EXPECT_EQ(ordered.front().exchanges, 1);
    const std::vector<Sums> usual = on_group(ranks, false);
    EXPECT_GT(differing(usual), 0) << "the group's own sums have another order";
    EXPECT_EQ(usual.front().scatters, 1);
    EXPECT_EQ(usual.front().exchanges, 0);
  }
}

TEST(OrderedSums, OfTwoRanksAreThoseOfTheGroup) {
  const std::vector<Sums> two = on_group(2, true);
  EXPECT_EQ(differing(two), 0);
  EXPECT_EQ(two.front().scatters, 1);
  EXPECT_EQ(two.front().exchanges, 0);
}

}  // namespace
}  // namespace primus::engine
