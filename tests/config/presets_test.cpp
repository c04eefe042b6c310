// Every preset and example loads, and every preset describes the model whose name it has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "config/experiment.h"
#include "support.h"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = PRIMUS_SOURCE_DIR;

Experiment load_model(const std::string& model) {
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {config: pre_trainer.yaml, model: " +
      model + ", overrides: {mock_data: true}}}\n";
  return load_experiment_text(text, "exp.yaml", {}, options_with({}, {kSource / "presets"}));
}

// Parameters of a dense Llama or Qwen, layer by layer as in the papers.
int64_t parameter_count(const TrainerConfig& c, int64_t vocabulary) {
  const int64_t query = c.num_attention_heads * c.kv_channels, kv = c.num_query_groups * c.kv_channels;
  const int64_t attention = c.hidden_size * (query + 2 * kv) + query * c.hidden_size;
  const int64_t feed_forward = 3 * c.hidden_size * c.ffn_hidden_size;
  const int64_t biases = c.add_qkv_bias.value_or(false) ? query + 2 * kv : 0;
  const int64_t norms = 2 * c.hidden_size + (c.qk_layernorm.value_or(false) ? 2 * c.kv_channels : 0);
  const int64_t embeddings =
      c.padded_vocab_size(vocabulary) * c.hidden_size * (c.untie_embeddings_and_output_weights ? 2 : 1);
  return embeddings + c.num_layers * (attention + biases + feed_forward + norms) + c.hidden_size;
}

struct Published {
  const char* preset;
  int64_t parameters;
  int64_t context;
  double theta;
  double rope_factor;  // 0: not stretched
  bool tied;
  double epsilon = 1e-5;
};

// As printed by `sum(p.numel() for p in model.parameters())` for the models on Hugging Face, and their
// config.json.
constexpr Published kPublished[] = {
    {"llama2_7B.yaml", 6'738'415'616, 4096, 1e4, 0, false},
    {"llama2_13B.yaml", 13'015'864'320, 4096, 1e4, 0, false},
    {"llama2_70B.yaml", 68'976'648'192, 4096, 1e4, 0, false},
    {"llama3_8B.yaml", 8'030'261'248, 8192, 5e5, 0, false},
    {"llama3_70B.yaml", 70'553'706'496, 8192, 5e5, 0, false},
    {"llama3.1_8B.yaml", 8'030'261'248, 131072, 5e5, 8, false},
    {"llama3.1_70B.yaml", 70'553'706'496, 131072, 5e5, 8, false},
    {"llama3.1_405B.yaml", 405'853'388'800, 131072, 5e5, 8, false},
    {"llama3.2_1B.yaml", 1'235'814'400, 131072, 5e5, 32, true},
    {"llama3.2_3B.yaml", 3'212'749'824, 131072, 5e5, 32, true},
    {"llama3.3_70B.yaml", 70'553'706'496, 131072, 5e5, 8, false},
    {"qwen2.5_0.5B.yaml", 494'032'768, 32768, 1e6, 0, true, 1e-6},
    {"qwen2.5_1.5B.yaml", 1'543'714'304, 131072, 1e6, 0, true, 1e-6},
    {"qwen2.5_3B.yaml", 3'085'938'688, 32768, 1e6, 0, true, 1e-6},
    {"qwen2.5_7B.yaml", 7'615'616'512, 131072, 1e6, 0, false, 1e-6},
    {"qwen2.5_14B.yaml", 14'770'033'664, 131072, 1e6, 0, false},
    {"qwen2.5_32B.yaml", 32'763'876'352, 131072, 1e6, 0, false},
    {"qwen2.5_72B.yaml", 72'706'203'648, 131072, 1e6, 0, false},
    {"qwen3_0.6B.yaml", 596'049'920, 40960, 1e6, 0, true, 1e-6},
    {"qwen3_1.7B.yaml", 1'720'574'976, 40960, 1e6, 0, true, 1e-6},
    {"qwen3_4B.yaml", 4'022'468'096, 40960, 1e6, 0, true, 1e-6},
    {"qwen3_8B.yaml", 8'190'735'360, 40960, 1e6, 0, false, 1e-6},
    {"qwen3_14B.yaml", 14'768'307'200, 40960, 1e6, 0, false, 1e-6},
    {"qwen3_32B.yaml", 32'762'123'264, 40960, 1e6, 0, false, 1e-6},
    {"llama_25M.yaml", 26'450'304, 1024, 1e4, 0, true},
    {"llama_124M.yaml", 123'587'328, 1024, 1e4, 0, true},
};

TEST(Presets, HoldThePublishedModels) {
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.preset);
    const TrainerConfig c = load_model(published.preset).trainer;
    ASSERT_TRUE(c.vocab_size);
    EXPECT_EQ(parameter_count(c, *c.vocab_size), published.parameters);
    EXPECT_EQ(c.max_position_embeddings, published.context);
    EXPECT_EQ(c.rotary_base, published.theta);
    EXPECT_EQ(c.untie_embeddings_and_output_weights, !published.tied);
    EXPECT_EQ(c.norm_epsilon, published.epsilon);
    EXPECT_EQ(c.rope_scaling_type, published.rope_factor == 0 ? "none" : "llama3");
    if (published.rope_factor != 0) {
      EXPECT_EQ(c.rope_scaling_factor, published.rope_factor);
      EXPECT_EQ(c.rope_low_freq_factor, 1.0);
      EXPECT_EQ(c.rope_high_freq_factor, 4.0);
      EXPECT_EQ(c.original_max_position_embeddings, 8192);
    }
  }
}

TEST(Presets, EveryModelIsInTheTableAboveOrABase) {
  for (const auto& entry : fs::directory_iterator(kSource / "presets" / "models")) {
    const std::string name = entry.path().filename().string();
    if (name.find("_base.yaml") != std::string::npos || name == "llama_tiny.yaml") continue;
    bool listed = false;
    for (const Published& published : kPublished) listed = listed || name == published.preset;
    EXPECT_TRUE(listed) << name;
  }
}

TEST(Presets, TinyIsForLaptops) {
  const TrainerConfig c = load_model("llama_tiny.yaml").trainer;
  EXPECT_LT(parameter_count(c, 2048), 3'000'000);
}

TEST(Presets, HeadWidthFollowsFromTheOthers) {
  EXPECT_EQ(load_model("llama3.2_1B").trainer.kv_channels, 64);
  EXPECT_EQ(load_model("llama3.2_3B").trainer.kv_channels, 128);
  EXPECT_EQ(load_model("llama2_7B").trainer.num_query_groups, 32);
}

TEST(Examples, AllLoadWithoutAWord) {
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
  EXPECT_GE(count, 3);
}

TEST(Reference, IsWhatTheKeyTableSays) {
  const fs::path path = kSource / "docs" / "config.md";
  if (std::getenv("PRIMUS_UPDATE_DOCS")) std::ofstream(path) << markdown_reference();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == markdown_reference()) << "run this test with PRIMUS_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace primus::config
