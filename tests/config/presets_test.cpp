// Tests that every preset and example loads. tests/lm/train/presets_test.cpp compares presets with published
// models.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "config/experiment.h"
#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = PRIMUS_SOURCE_DIR;

Experiment load_model(const std::string& model) {
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {config: pre_trainer.yaml, model: " +
      model + ", overrides: {mock_data: true, seq_length: 512}}}\n";
  return load_experiment_text(text, "exp.yaml", {}, options_with({}, {kSource / "presets"}));
}

TEST(Presets, EachLoadsWithoutWarnings) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "presets" / "models")) {
    if (entry.is_directory()) continue;  // presets of other frameworks (tests/backends)
    const std::string name = entry.path().filename().string();
    if (name.ends_with("_base.yaml")) continue;
    SCOPED_TRACE(name);
    ++count;
    try {
      const Experiment experiment = load_model(name);
      EXPECT_TRUE(experiment.ignored.empty());
      for (const auto& warning : experiment.warnings) ADD_FAILURE() << warning;
    } catch (const Error& error) {
      ADD_FAILURE() << error.render();
    }
  }
  EXPECT_GE(count, 49);
}

// README.md and docs/posttrain.md look for the runs of these examples in output/primus/$(id -un). An example
// that begins with the run of another one names the same folder.
TEST(Presets, RunsOfTheExamplesForCpusBelongToTheUser) {
  int loaded = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "examples/native/configs/CPU")) {
    SCOPED_TRACE(entry.path().filename().string());
    const Experiment experiment =
        load_experiment(entry.path(), {}, options_with({{"USER", "ann"}}, {kSource / "presets"}));
    EXPECT_EQ(experiment.user_name, "ann");
    if (!experiment.trainer->load) continue;
    ++loaded;
    EXPECT_EQ(experiment.trainer->load->find("output/primus/ann/"), 0U) << *experiment.trainer->load;
  }
  EXPECT_GE(loaded, 3);
}

TEST(Presets, NamesIgnoreCase) {
  EXPECT_EQ(load_model("qwen3_4b").trainer->hidden_size, load_model("qwen3_4B.yaml").trainer->hidden_size);
  EXPECT_EQ(load_model("GPT_OSS_20b.yaml").trainer->model_type, "gpt_oss");
}

TEST(Presets, TinyIsForLaptops) {
  const TrainerConfig c = load_model("llama_tiny.yaml").trainer;
  EXPECT_LT(c.num_layers * c.hidden_size * (4 * c.hidden_size + 3 * c.ffn_hidden_size), 3'000'000);
}

TEST(Presets, HeadWidthFollowsFromOtherSizes) {
  EXPECT_EQ(load_model("llama3.2_1B").trainer->kv_channels, 64);
  EXPECT_EQ(load_model("llama3.2_3B").trainer->kv_channels, 128);
  EXPECT_EQ(load_model("llama2_7B").trainer->num_query_groups, 32);
}

TEST(Examples, LoadWithoutWarnings) {
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "examples" / "native")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().string());
    ++count;
    try {
      const Experiment experiment =
          load_experiment(entry.path(), {}, options_with({}, {kSource / "presets"}));
      EXPECT_TRUE(experiment.ignored.empty());
      EXPECT_TRUE(experiment.warnings.empty());
      EXPECT_EQ(experiment.framework, "native");
    } catch (const Error& error) {
      ADD_FAILURE() << error.render();
    }
  }
  EXPECT_GE(count, 36);
}

TEST(Reference, EqualsTheKeyTable) {
  const fs::path path = kSource / "docs" / "config.md";
  if (std::getenv("PRIMUS_UPDATE_DOCS")) std::ofstream(path) << markdown_reference();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == markdown_reference()) << "run this test with PRIMUS_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace primus::config
