// What is stored of parameters, and their initial values, which belong to a parameter's name.
#include "engine/parameters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/rank.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

// The initial values of the parameter "layers.7.attention.qkv" in a store that has `others` before it.
std::vector<float> initial_values(const std::vector<std::string>& others, std::uint64_t seed) {
  Rank rank(turbo::make_cpu_device(1));
  rank.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
  ParameterStore store;
  store.begin_group("block");
  for (const std::string& name : others) store.add(name, {33}, Initializer::normal(1));
  const Parameter& parameter = store.add("layers.7.attention.qkv", {5, 60}, Initializer::normal(0.02));
  store.allocate({.train = false}, rank.persistent());
  store.initialize(rank.context(), seed);
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.elements()));
  rank.compute().copy_to_host(values.data(), parameter.value.data, parameter.value.bytes());
  rank.compute().synchronize();
  return values;
}

// A stage of a pipeline, which holds some blocks only, starts from the same weights as the whole model.
TEST(ParameterStore, InitialValuesDependOnSeedAndNameAlone) {
  const std::vector<float> alone = initial_values({}, 3);
  EXPECT_EQ(initial_values({"embedding", "layers.6.attention.qkv"}, 3), alone);
  EXPECT_NE(initial_values({}, 4), alone);
  EXPECT_NE(alone.front(), alone.back());
}

TEST(ParameterStore, EveryNameHasValuesOfItsOwn) {
  Rank rank(turbo::make_cpu_device(1));
  rank.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
  ParameterStore store;
  store.begin_group("block");
  const Parameter& first = store.add("layers.1.down", {64}, Initializer::normal(1));
  const Parameter& second = store.add("layers.2.down", {64}, Initializer::normal(1));
  store.allocate({.train = false}, rank.persistent());
  store.initialize(rank.context(), 1);
  std::vector<float> values[2] = {std::vector<float>(64), std::vector<float>(64)};
  rank.compute().copy_to_host(values[0].data(), first.value.data, first.value.bytes());
  rank.compute().copy_to_host(values[1].data(), second.value.data, second.value.bytes());
  rank.compute().synchronize();
  EXPECT_NE(values[0], values[1]);
}

// A matrix, a norm and a router in one group.
void declare_block(ParameterStore& store) {
  store.begin_group("layers.0");
  store.add("layers.0.norm", {40}, Initializer::constant(1));
  store.add("layers.0.up", {96, 42}, Initializer::normal(0.1));
  store.add("layers.0.router", {8, 48}, Initializer::normal(0.1)).reads_full_precision = true;
}

std::int64_t bytes_of(const ParameterStore::Layout& layout, bool frozen = false) {
  Rank rank(turbo::make_cpu_device(1));
  ParameterStore store;
  declare_block(store);
  for (Parameter& p : store.parameters()) p.trainable = !frozen;
  store.allocate(layout, rank.persistent());
  return rank.high_water().persistent;
}

// Each parameter is rounded up to a multiple of 64 elements.
constexpr std::int64_t kNarrow = 64 + 96 * 42, kWide = 8 * 48;

TEST(ParameterStore, StoresWhatItsUseNeedsAndNoMore) {
  const std::vector<StateSpec> two = {{"a"}, {"b", DType::kBF16}};
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .train = false}), 2 * kNarrow + 4 * kWide);
  EXPECT_EQ(bytes_of({.compute = DType::kF32, .train = false}), 4 * (kNarrow + kWide));
  // Values, master, gradient, and the states in their types.
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .states = two}),
            (2 + 4 + 4 + 6) * kNarrow + (4 + 4 + 6) * kWide);
  // What is frozen has neither master nor gradient nor states.
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .states = two}, true), 2 * kNarrow + 4 * kWide);
}

// Every element is stored by as many ranks as there are copies, counted by one, and starts as on one rank.
TEST(ParameterStore, ShardsAreTheWhole) {
  Rank one(turbo::make_cpu_device(1));
  one.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
  ParameterStore whole;
  declare_block(whole);
  whole.allocate({.states = {{"a"}}}, one.persistent());
  whole.initialize(one.context(), 5);
  for (const int shards : {1, 2, 3, 6}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kStates, Sharding::kParameters}) {
      std::vector<std::vector<int>> stored, counted;
      for (const Parameter& p : whole.parameters()) {
        stored.emplace_back(static_cast<std::size_t>(p.shape.elements()));
        counted.emplace_back(static_cast<std::size_t>(p.shape.elements()));
      }
      constexpr int kRanks = 6;
      for (int r = 0; r < kRanks; ++r) {
        Rank rank(turbo::make_cpu_device(1));
        rank.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
        ParameterStore store;
        declare_block(store);
        store.allocate(
            {.states = {{"a"}}, .sharding = sharding, .ranks = kRanks, .rank = r, .shards = shards},
            rank.persistent());
        store.initialize(rank.context(), 5);
        for (const Parameter& p : store.parameters()) {
          const auto i = static_cast<std::size_t>(p.index);
          const FlatRange range = stored_range(p);
          for (std::int64_t e = range.begin; e < range.end; ++e) ++stored[i][static_cast<std::size_t>(e)];
          const FlatRange own =
              range.intersect({p.unit->slice.begin - p.offset, p.unit->slice.end - p.offset});
          for (std::int64_t e = own.begin; e < own.end; ++e) ++counted[i][static_cast<std::size_t>(e)];
          if (range.empty()) continue;
          std::vector<float> values(static_cast<std::size_t>(range.size())), expected(values.size());
          const Tensor part = stored_part(p.unit->master, p);
          rank.compute().copy_to_host(values.data(), part.data, part.bytes());
          const Parameter& q = whole.parameters()[i];
          one.compute().copy_to_host(expected.data(), static_cast<const float*>(q.value.data) + range.begin,
                                     part.bytes());
          rank.compute().synchronize();
          one.compute().synchronize();
          EXPECT_EQ(values, expected) << p.name;
        }
      }
      const int copies = sharding == Sharding::kNone ? kRanks : kRanks / shards;
      for (std::size_t i = 0; i < stored.size(); ++i) {
        EXPECT_EQ(stored[i], std::vector<int>(stored[i].size(), copies));
        EXPECT_EQ(counted[i], std::vector<int>(counted[i].size(), 1));
      }
    }
  }
}

}  // namespace
}  // namespace primus::engine
