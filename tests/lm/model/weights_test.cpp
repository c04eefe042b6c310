// Import and export: what is loaded from a published checkpoint is written back byte for byte, whatever the
// layout.
#include "lm/model/weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "lm/model/language_model.h"
#include "lm/model/published_layout.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

class Published : public testing::TestWithParam<const char*> {};

TEST_P(Published, TensorsComeBackByteForByte) {
  const Path folder = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models" / GetParam();
  const FamilyRegistry families = builtin_families();
  const ModelConfig config = read_model_config(read_file(folder / "config.json"), "config.json", families);
  const SafetensorsFolder weights = SafetensorsFolder::open(folder);
  engine::Rank rank(turbo::make_cpu_device(1));
  const auto build = [&](engine::ParameterStore& store) {
    const LanguageModel model(config, families, store);
    store.allocate({.compute = DType::kF32, .gradients = false, .optimizer_states = false},
                   rank.persistent());
  };
  {
    engine::ParameterStore measuring;
    build(measuring);
  }
  rank.reserve(rank.high_water());
  engine::ParameterStore store;
  build(store);
  load_weights(weights, store, rank);
  DeviceReader reader(rank);
  const std::vector<TensorSource> sources = model_sources(store, reader);
  EXPECT_EQ(sources.size(), weights.size());
  for (const TensorSource& source : sources) {
    const TensorView original = weights.at(source.name, source.shape);
    std::vector<std::byte> written(original.data.size());
    // In pieces that do not divide anything.
    constexpr std::size_t kPiece = 1004;
    for (std::size_t at = 0; at < written.size(); at += kPiece)
      source.fill(at, std::span(written).subspan(at, std::min(kPiece, written.size() - at)));
    EXPECT_TRUE(std::equal(written.begin(), written.end(), original.data.begin())) << source.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Published, testing::Values("llama", "mixtral", "qwen3_moe"),
                         [](const auto& family) { return std::string(family.param); });

TEST(PublishedLayout, PermutesAxesWithinSlabs) {
  // [2 slabs, 2, 3] in memory, published as [2, 3, 2].
  const engine::PublishedLayout layout{.dims = {2, 2, 3}, .axes = {0, 2, 1}, .shape = {2, 3, 2}};
  const std::vector<float> memory = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
  std::vector<float> published(memory.size()), back(memory.size());
  to_published_order(layout, 4, std::as_bytes(std::span(memory)),
                     std::as_writable_bytes(std::span(published)));
  EXPECT_EQ(published, (std::vector<float>{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15}));
  to_memory_order(layout, 4, std::as_bytes(std::span(published)), std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, memory);
}

TEST(PublishedLayout, InterleavedRowsOfFourAxes) {
  // One expert of gate rows, then up rows, [2, ffn = 2, hidden = 2]; published [hidden, 2 * ffn] with gate
  // and up in turn.
  const engine::PublishedLayout layout{.dims = {1, 2, 2, 2}, .axes = {0, 3, 2, 1}, .shape = {1, 2, 4}};
  const std::vector<float> memory = {100, 101, 110, 111, 200, 201, 210, 211};  // (gate|up)(row)(column)
  std::vector<float> published(memory.size());
  to_published_order(layout, 4, std::as_bytes(std::span(memory)),
                     std::as_writable_bytes(std::span(published)));
  EXPECT_EQ(published, (std::vector<float>{100, 200, 110, 210, 101, 201, 111, 211}));
}

}  // namespace
}  // namespace primus
