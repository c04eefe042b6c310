// Tests the memory of parameters, their shards, and their initial values, which depend on a parameter's name.
#include "engine/runtime/parameters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/runtime/rank.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

// Returns the initial values of "layers.7.attention.qkv" in a store with the parameters `others` before it.
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

// A pipeline stage that holds only some blocks starts with the same weights as the whole model.
TEST(ParameterStore, InitialValuesDependOnlyOnSeedAndName) {
  const std::vector<float> single = initial_values({}, 3);
  EXPECT_EQ(initial_values({"embedding", "layers.6.attention.qkv"}, 3), single);
  EXPECT_NE(initial_values({}, 4), single);
  EXPECT_NE(single.front(), single.back());
}

TEST(ParameterStore, EveryNameHasItsOwnValues) {
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

// Returns `place` for every reduce group.
GroupPlaces groups_of(const GroupPlace& place) {
  GroupPlaces groups;
  groups.fill(place);
  return groups;
}

// Declares a norm, a matrix and a router in one group.
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

// Each parameter is padded to a multiple of 64 elements.
constexpr std::int64_t kNarrow = 64 + 96 * 42, kWide = 8 * 48;

TEST(ParameterStore, StoresOnlyWhatItsUseNeeds) {
  const std::vector<StateSpec> two = {{"a"}, {"b", DType::kBF16}};
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .train = false}), 2 * kNarrow + 4 * kWide);
  EXPECT_EQ(bytes_of({.compute = DType::kF32, .train = false}), 4 * (kNarrow + kWide));
  // Bytes per element of values, master, gradient, and the states in their types.
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .states = {two}}),
            (2 + 4 + 4 + 6) * kNarrow + (4 + 4 + 6) * kWide);
  // Frozen parameters have no master, gradient or states.
  EXPECT_EQ(bytes_of({.compute = DType::kBF16, .states = {two}}, true), 2 * kNarrow + 4 * kWide);
}

// The router's choice bias is read without a gather, so it is not sharded. Therefore the bias has its own
// unit, even if all parameters of its group are frozen.
TEST(ParameterStore, UnshardedParametersHaveTheirOwnUnit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Rank rank(turbo::make_cpu_device(1));
    ParameterStore store;
    declare_block(store);
    Parameter& bias = store.add("layers.0.choice_bias", {8}, Initializer::constant(0));
    bias.full_precision = true;
    for (Parameter& p : store.parameters()) p.trainable = false;
    ParameterStore::Layout layout{.compute = compute, .sharding = Sharding::kParameters};
    for (GroupPlace& place : layout.groups) place = {.ranks = 2, .shards = 2};
    store.allocate(layout, rank.persistent());
    EXPECT_EQ(bias.unit->parameters.size(), 1U);
    EXPECT_EQ(bias.unit->sharding, Sharding::kNone);
    EXPECT_EQ(store.parameters().front().unit->sharding, Sharding::kParameters);
  }
}

// With n copies, n ranks store each element. The element belongs to the slice of one rank, and has the
// initial value of an unsharded store.
TEST(ParameterStore, ShardsFormTheWhole) {
  Rank one(turbo::make_cpu_device(1));
  one.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
  ParameterStore whole;
  declare_block(whole);
  whole.allocate({.states = {{{"a"}}}}, one.persistent());
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
        store.allocate({.states = {{{"a"}}},
                        .sharding = sharding,
                        .groups = groups_of({.ranks = kRanks, .rank = r, .shards = shards})},
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
          const Tensor part = stored_part(p.unit->stored.master, p);
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

// Parts of a matrix [10, 6]: whole_elements() maps every range of a part to elements of the matrix.
TEST(Placement, ElementsOfPartsEqualTheWhole) {
  struct Part {
    Shape shape;
    Placement placement;
    std::vector<std::int64_t> elements;  // indices in the whole matrix
  };
  const auto numbers = [](const std::vector<std::int64_t>& rows, std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> elements;
    for (const std::int64_t row : rows) {
      for (std::int64_t column = begin; column < end; ++column) elements.push_back(row * 6 + column);
    }
    return elements;
  };
  const Shape whole{10, 6};
  for (const Part& part :
       {Part{{10, 6}, {}, numbers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, 6)},
        Part{{4, 6}, {.whole = whole, .rows = {{2, 3}, {8, 1}}}, numbers({2, 3, 4, 8}, 0, 6)},
        Part{{10, 2},
             {.whole = whole, .rows = {{0, 10}}, .column = 4},
             numbers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 4, 6)},
        Part{{2, 2, 3},
             {.whole = {5, 2, 6}, .rows = {{1, 1}, {4, 1}, {7, 2}}, .column = 3},
             numbers({1, 4, 7, 8}, 3, 6)}}) {
    ParameterStore store;
    store.begin_group("block");
    const Parameter& p = store.add("w", part.shape, Initializer::normal(1), {}, part.placement);
    const std::int64_t count = p.shape.elements();
    ASSERT_EQ(count, static_cast<std::int64_t>(part.elements.size()));
    for (std::int64_t begin = 0; begin <= count; ++begin) {
      for (std::int64_t end = begin; end <= count; ++end) {
        std::vector<std::int64_t> found;
        for (const StridedRun& run : whole_elements(p, {begin, end})) {
          for (std::int64_t i = 0; i < run.count; ++i) {
            for (std::int64_t k = 0; k < run.length; ++k) found.push_back(run.begin + i * run.stride + k);
          }
        }
        EXPECT_EQ(found,
                  std::vector<std::int64_t>(part.elements.begin() + begin, part.elements.begin() + end))
            << begin << " to " << end;
      }
    }
    // Conversely, elements_in_rows() maps rows of the matrix to elements of the part.
    for (std::int64_t row = 0; row <= 10; ++row) {
      for (std::int64_t end = row; end <= 10; ++end) {
        const FlatRange range = elements_in_rows(p, row, end - row);
        std::int64_t expected = 0;
        for (const std::int64_t element : part.elements) expected += element >= row * 6 && element < end * 6;
        EXPECT_EQ(range.size(), expected);
        if (!range.empty()) {
          EXPECT_GE(part.elements[static_cast<std::size_t>(range.begin)], row * 6);
          EXPECT_LT(part.elements[static_cast<std::size_t>(range.end - 1)], end * 6);
        }
      }
    }
  }
}

TEST(Placement, InvalidPartsAreRefused) {
  const auto add = [](const Shape& shape, Placement placement) {
    ParameterStore store;
    store.begin_group("block");
    store.add("w", shape, Initializer::normal(1), {}, std::move(placement));
  };
  const Shape whole{10, 6};
  add({4, 6}, {.whole = whole, .rows = {{6, 4}}});
  EXPECT_THROW(add({4, 6}, {.whole = whole, .rows = {{7, 4}}}), std::logic_error);
  EXPECT_THROW(add({4, 6}, {.whole = whole, .rows = {{6, 3}}}), std::logic_error);
  EXPECT_THROW(add({4, 6}, {.whole = whole, .rows = {{6, 2}, {2, 2}}}), std::logic_error);
  EXPECT_THROW(add({4, 3}, {.whole = whole, .rows = {{6, 4}}, .column = 4}), std::logic_error);
}

// Parts of a parameter on a mesh start with the values of the whole parameter.
TEST(Placement, PartsHaveTheInitialValuesOfTheWhole) {
  const auto values_of = [](const Shape& shape, Placement placement, const GroupPlace& place) {
    Rank rank(turbo::make_cpu_device(1));
    rank.reserve({.persistent = 1 << 20, .stash = 1, .scratch = 1});
    ParameterStore store;
    store.begin_group("block");
    const Parameter& p = store.add("w", shape, Initializer::normal(1), {}, std::move(placement));
    store.allocate({.sharding = Sharding::kStates, .groups = groups_of(place)}, rank.persistent());
    store.initialize(rank.context(), 9);
    const Tensor stored = stored_part(p.unit->stored.values, p);
    std::vector<float> values(static_cast<std::size_t>(stored_range(p).size()));
    if (!values.empty()) rank.compute().copy_to_host(values.data(), stored.data, stored.bytes());
    rank.compute().synchronize();
    return std::pair(stored_range(p), values);
  };
  const Shape whole{90, 70};
  const std::vector<float> expected = values_of(whole, {}, {}).second;
  for (const auto& [shape, placement] : {std::pair(Shape{60, 70}, Placement{whole, {{0, 25}, {50, 35}}}),
                                         std::pair(Shape{90, 33}, Placement{whole, {{0, 90}}, 11})}) {
    for (int r = 0; r < 3; ++r) {
      const auto [range, values] = values_of(shape, placement, {.ranks = 3, .rank = r, .shards = 3});
      ParameterStore store;
      store.begin_group("block");
      const Parameter& p = store.add("w", shape, Initializer::normal(1), {}, placement);
      std::vector<float> of_whole;
      for (const StridedRun& run : whole_elements(p, range)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          const auto from = expected.begin() + run.begin + i * run.stride;
          of_whole.insert(of_whole.end(), from, from + run.length);
        }
      }
      EXPECT_EQ(values, of_whole);
    }
  }
}

}  // namespace
}  // namespace primus::engine
