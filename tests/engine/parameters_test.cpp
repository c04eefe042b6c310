// What parameters are before training: random values that belong to a parameter's name.
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

}  // namespace
}  // namespace primus::engine
