// Tests adapters that differ between the rows of a pass: with tables on the device, a product equals the one
// whose adapters are computed for the rows of one model after another.
#include "engine/operators/row_adapters.h"

#include <deque>
#include <span>

#include "engine/device_values.h"
#include "engine/operators/operators.h"
#include "engine/operators/row_adapter_tables.h"
#include "engine/runtime/phase.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/shared_parameters.h"
#include "turbo/operator_test.h"

namespace primus::engine {
namespace {

using turbo::test::DeviceUnderTest;
using turbo::test::OperatorBench;

constexpr std::int64_t kRows = 7, kIn = 40, kOut = 30;
const std::vector<std::int32_t> kModels{0, 1, 1, 2, 3, 3, 0};
const std::vector<AdapterRun> kRuns{{1, 1, 3, 1, 2}, {2, 3, 4, 3, 1}, {3, 4, 6, 4, 2}};

// The adapter of the columns [first, first + columns) of a matrix.
struct Part {
  std::int64_t first, columns, rank;
  float scale;
  bool bias = false, magnitude = false;
};

// A base model with two linear layers, and three models with adapters of them.
class RowAdaptersOnTape {
 public:
  // `magnitude`: an adapter of layer a has magnitudes.
  RowAdaptersOnTape(const DeviceUnderTest& device, bool magnitude)
      : rank_(OperatorBench::make_device(device)) {
    rank_.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
    add_layers(stores_.emplace_back());
    stores_.front().allocate({.train = false}, rank_.persistent());
    for (Parameter& p : stores_.front().parameters()) fill_numbers(p);
    adapters_.add(stores_.front(), stores_.front());
    add_model({{"a", {{0, kOut, 3, 1.5F}}}});
    add_model({{"a", {{0, 10, 16, 0.5F, true}, {12, 18, 1, 2, false, magnitude}}}, {"b", {{0, kOut, 9, 1}}}});
    add_model({{"b", {{5, 7, 2, 1, true}}}});
  }

  // Returns the product of some numbers with a layer.
  std::vector<float> product(const std::string& layer, const RowAdapterTables* tables,
                             std::span<const AdapterRun> runs) {
    RowAdapterPass pass{.adapters = adapters_, .runs = runs, .tables = tables};
    if (tables) {
      pass.models = tables->models(kRows);
      test::write(rank_, pass.models, kModels);
    }
    Tape tape(rank_.context(), rank_.stash());
    tape.begin({.train = false, .row_adapters = &pass});
    const Value x = tape.input(DType::kF32, {kRows, kIn}, false);
    test::write(rank_, x.tensor(), test::numbers(kRows * kIn, 3));
    return test::read(rank_, linear(x, weight(layer)).tensor());
  }

  Parameter& weight(const std::string& layer) {
    for (Parameter& p : stores_.front().parameters()) {
      if (p.name == layer) return p;
    }
    throw std::logic_error(layer);
  }
  Rank& rank() { return rank_; }
  const RowAdapters& adapters() const { return adapters_; }

 private:
  struct Layer {
    std::string name;
    std::vector<Part> parts;
  };

  static void add_layers(ParameterStore& store) {
    store.begin_group("layer");
    for (const char* const name : {"a", "b"}) {
      Parameter& p = store.add(name, {kOut, kIn}, Initializer::normal(1));
      p.trainable = false;
      p.uses = {0};
    }
  }

  void add_model(const std::vector<Layer>& layers) {
    ParameterStore& store = stores_.emplace_back();
    add_layers(store);
    std::vector<Parameter*> own;
    const auto add = [&](const std::string& name, Shape shape) {
      own.push_back(&store.add(name, std::move(shape), Initializer::normal(1)));
      own.back()->uses = {0};
      return own.back();
    };
    for (const Layer& layer : layers) {
      std::vector<LowRank> parts;
      for (const Part& part : layer.parts) {
        const std::string name = layer.name + "." + std::to_string(part.first);
        LowRank low{.down = add(name + ".down", {part.rank, kIn}),
                    .up = add(name + ".up", {part.columns, part.rank}),
                    .first = part.first,
                    .scale = part.scale};
        if (part.bias) low.bias = add(name + ".bias", {part.columns});
        if (part.magnitude) low.magnitude = add(name + ".magnitude", {part.columns});
        parts.push_back(low);
      }
      for (Parameter& p : store.parameters()) {
        if (p.name != layer.name) continue;
        const bool whole = parts.size() == 1 && layer.parts.front().columns == kOut;
        if (whole) {
          p.low_rank = parts.front();
        } else {
          p.low_rank.parts = parts;
        }
      }
    }
    allocate_beside(store, stores_.front(), {.train = false}, rank_.persistent());
    for (Parameter* p : own) fill_numbers(*p);
    adapters_.add(stores_.front(), store);
  }

  void fill_numbers(Parameter& p) {
    test::write(rank_, p.value, test::numbers(p.value.elements(), 10 + filled_++));
  }
  Rank rank_;
  std::deque<ParameterStore> stores_;
  RowAdapters adapters_;
  std::uint64_t filled_ = 0;
};

class RowAdapterTablesTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, RowAdapterTablesTest,
                         ::testing::ValuesIn(turbo::test::devices_under_test()));

TEST_P(RowAdapterTablesTest, EqualTheAdaptersOfOneModelAfterAnother) {
  RowAdaptersOnTape layers(GetParam(), false);
  Phase phase(layers.rank());
  const RowAdapterTables tables(layers.rank(), phase, layers.adapters());
  EXPECT_TRUE(tables.complete());
  EXPECT_TRUE(tables.support(turbo::AddRowAdapters::kMaxRows));
  EXPECT_FALSE(tables.support(turbo::AddRowAdapters::kMaxRows + 1));
  for (const char* const layer : {"a", "b"}) {
    const std::vector<float> expected = layers.product(layer, nullptr, kRuns),
                             actual = layers.product(layer, &tables, {});
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], 1e-5 * std::abs(expected[i]) + 1e-4) << layer << i;
    EXPECT_NE(actual, layers.product(layer, nullptr, {}));
  }
}

// A layer with magnitudes (DoRA) applies the adapters of one model after another. The other layer uses its
// table.
TEST_P(RowAdapterTablesTest, LackLayersWithMagnitudes) {
  RowAdaptersOnTape layers(GetParam(), true);
  Phase phase(layers.rank());
  const RowAdapterTables tables(layers.rank(), phase, layers.adapters());
  EXPECT_FALSE(tables.complete());
  EXPECT_EQ(tables.of(layers.weight("a")), nullptr);
  EXPECT_NE(tables.of(layers.weight("b")), nullptr);
  EXPECT_EQ(layers.product("a", &tables, kRuns), layers.product("a", nullptr, kRuns));
  EXPECT_EQ(layers.product("b", &tables, {}), layers.product("b", &tables, kRuns));
}

TEST(RowAdapterTables, AreEmptyOnBatchInvariantDevices) {
  RowAdaptersOnTape layers({.batch_invariant = true}, false);
  Phase phase(layers.rank());
  const RowAdapterTables tables(layers.rank(), phase, layers.adapters());
  EXPECT_FALSE(tables.complete());
  EXPECT_FALSE(tables.support(1));
}

}  // namespace
}  // namespace primus::engine
