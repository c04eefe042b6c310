// Tests adapter_config.json: Primus adds adapters to the same matrices of a Llama as PEFT 0.21 does.
#include "lm/model/peft_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace primus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig two_layers() {
  ModelConfig c;
  c.family = "llama";
  c.layers = 2;
  c.hidden = 64;
  c.ffn = 96;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.vocab = 200;
  c.max_positions = 64;
  return c;
}

LoraConfig lora(const std::string& settings, const ModelConfig& model = two_layers()) {
  return adapters_of(read_peft_config(R"({"peft_type": "LORA", )" + settings + "}", "adapter_config.json"),
                     model, builtin_families(), "adapter_config.json");
}

// Returns the names without "model.layers.".
std::vector<std::string> names(const std::string& settings) {
  std::vector<std::string> result;
  for (const MatrixAdapters::Matrix& m : lora(settings).by_matrix.matrices)
    result.push_back(m.name.substr(std::string("model.layers.").size()));
  return result;
}

// Returns "MESSAGE / HINT" of the error for settings of an experiment.
std::string refusal_of_entries(const std::string& settings) {
  try {
    adapters_of(read_peft_config(R"({"peft_type": "LORA", )" + settings + "}", "x"), two_layers(),
                builtin_families(), "x", Entries::kAllMatch);
  } catch (const Error& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "";
}

std::string refusal(const std::string& settings, const ModelConfig& model = two_layers()) {
  try {
    lora(settings, model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PeftConfig, TargetsAreEndsOfNamesOrAnExpression) {
  EXPECT_THAT(names(R"("target_modules": ["q_proj"])"),
              ElementsAre("0.self_attn.q_proj", "1.self_attn.q_proj"));
  EXPECT_THAT(names(R"("target_modules": ["layers.1.mlp.up_proj"])"), ElementsAre("1.mlp.up_proj"));
  EXPECT_THAT(names(R"("target_modules": ".*\\.1\\..*(q|v)_proj")"),
              ElementsAre("1.self_attn.q_proj", "1.self_attn.v_proj"));
  EXPECT_THAT(refusal(R"("target_modules": "q_proj")"), HasSubstr("matches no module"));
  EXPECT_THAT(refusal(R"("target_modules": ["proj"])"), HasSubstr("matches no module"));
  EXPECT_EQ(names(R"("target_modules": "all-linear")").size(), 14U);
  EXPECT_EQ(names(R"("target_modules": "ALL-linear", "exclude_modules": ["mlp.up_proj"])").size(), 12U);
}

TEST(PeftConfig, LayersRestrictAListOfEnds) {
  EXPECT_THAT(names(R"("target_modules": ["q_proj"], "layers_to_transform": 1)"),
              ElementsAre("1.self_attn.q_proj"));
  EXPECT_THAT(
      names(R"("target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "layers")"),
      ElementsAre("0.self_attn.q_proj"));
  EXPECT_THAT(refusal(R"("target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "h")"),
              HasSubstr("matches no module"));
  EXPECT_THAT(names(R"("target_modules": ["model.layers.0.mlp.up_proj"], "layers_to_transform": [1])"),
              ElementsAre("0.mlp.up_proj"));
}

TEST(PeftConfig, PatternsChooseRankAndFactor) {
  const LoraConfig c = lora(
      R"("target_modules": ["q_proj", "up_proj"], "r": 4, "lora_alpha": 8, "rank_pattern": {"layers.1.*q_proj": 16},
         "alpha_pattern": {"up_proj": 2})");
  const MatrixAdapters::Matrix* const q = c.by_matrix.find("model.layers.1.self_attn.q_proj");
  ASSERT_TRUE(q);
  EXPECT_EQ(q->dim, 16);
  EXPECT_EQ(q->scale, 0.5);
  EXPECT_EQ(c.by_matrix.find("model.layers.0.self_attn.q_proj")->scale, 2);
  EXPECT_EQ(c.by_matrix.find("model.layers.0.mlp.up_proj")->scale, 0.5);
  EXPECT_EQ(lora(R"("target_modules": ["q_proj"], "r": 16, "lora_alpha": 8, "use_rslora": true)")
                .by_matrix.matrices[0]
                .scale,
            2);
}

TEST(PeftConfig, ModulesToSaveMatchTheEndsOfAllNames) {
  EXPECT_THAT(
      lora(R"("target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head"])").by_matrix.saved,
      ElementsAre("lm_head", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                  "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm"));
  EXPECT_THAT(names(R"("target_modules": ["q_proj", "up_proj"], "modules_to_save": ["mlp"])"),
              ElementsAre("0.self_attn.q_proj", "1.self_attn.q_proj"));
}

// A misspelt entry would silently adapt fewer or more matrices.
TEST(PeftConfig, EveryEntryOfAnExperimentMatchesAModule) {
  EXPECT_THAT(refusal_of_entries(R"("target_modules": ["q_proj", "v_porj"])"),
              AllOf(HasSubstr("target_modules names 'v_porj', which matches no module of the model"),
                    HasSubstr("did you mean 'v_proj'? linear modules of the model are q_proj, k_proj")));
  const auto with = [](const std::string& more) {
    return refusal_of_entries(R"("target_modules": ["q_proj", "v_proj"], )" + more);
  };
  EXPECT_THAT(with(R"("exclude_modules": ["q_porj"])"), HasSubstr("exclude_modules names 'q_porj'"));
  EXPECT_THAT(with(R"("exclude_modules": "q_proj,v_proj")"),
              HasSubstr("a list of names: lora.exclude_modules='[q_proj,v_proj]'"));
  EXPECT_THAT(with(R"("rank_pattern": {"q_proj": 4, "q_porj": 8})"),
              AllOf(HasSubstr("rank_pattern names 'q_porj'"), HasSubstr("did you mean 'q_proj'?")));
  EXPECT_THAT(with(R"("alpha_pattern": {"up_proj": 8})"),
              HasSubstr("alpha_pattern names 'up_proj', which matches no module with adapters"));
  EXPECT_THAT(with(R"("layers_to_transform": [0, 7])"), HasSubstr("names layer 7"));
  EXPECT_THAT(with(R"("layers_pattern": "layers")"), HasSubstr("only with layers_to_transform"));
  EXPECT_THAT(refusal_of_entries(R"("target_modules": "all-linear", "layers_to_transform": [0])"),
              HasSubstr("only with a list of names"));
  EXPECT_THAT(refusal_of_entries(R"("target_modules": "q_proj,v_proj")"),
              HasSubstr("write a list of names: lora.target_modules='[q_proj,v_proj]'"));
  EXPECT_EQ(with(R"("exclude_modules": ["lm_head"], "rank_pattern": {"q_proj": 4},
                     "layers_to_transform": [1, 0], "layers_pattern": "layers")"),
            "");
  // Published adapters may name modules of other models.
  EXPECT_EQ(refusal(R"("target_modules": ["q_proj", "c_attn"], "exclude_modules": ["fc"])"), "");
}

TEST(PeftConfig, UnsupportedFeaturesAreNamed) {
  const auto with = [](const std::string& settings) {
    return refusal(R"("target_modules": ["q_proj"], )" + settings);
  };
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"fan_in_fan_out", "true"},
           {"init_lora_weights", R"("pissa")"},
           {"target_parameters", R"(["mlp.experts.gate_up_proj"])"},
           {"trainable_token_indices", "[1]"},
           {"layer_replication", "[[0, 1]]"},
           {"use_qalora", "true"},
           {"alora_invocation_tokens", "[1]"},
           {"r", "0"}}) {
    EXPECT_THAT(with(fmt::format(R"("{}": {})", key, value)), HasSubstr(key));
  }
  EXPECT_THAT(refusal(R"("target_modules": ["lm_head"])"), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal(R"("target_modules": ["norm"])"), HasSubstr("no adapters of this module"));
  EXPECT_THAT(with(R"("modules_to_save": ["score"])"), HasSubstr("score"));
  ModelConfig tied = two_layers();
  tied.tied_embeddings = true;
  EXPECT_THAT(refusal(R"("target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"])", tied),
              HasSubstr("one matrix"));
  EXPECT_EQ(with(R"("bias": "all", "peft_version": "0.21.2", "use_qalora": false)"), "");
}

// The written file has complete names, and gives the same adapters.
TEST(PeftConfig, IsWrittenAndReadAgain) {
  ModelConfig model = two_layers();
  model.lora = lora(
      R"("target_modules": ["q_proj", "up_proj"], "r": 4, "rank_pattern": {"1.*q_proj": 2}, "use_dora": true,
         "lora_bias": true, "alpha_pattern": {"0.*up_proj": 3}, "modules_to_save": ["norm"])");
  const std::string text = write_peft_config(model, builtin_families(), "base");
  const PeftConfig again = read_peft_config(text, "adapter_config.json");
  EXPECT_EQ(again.base, "base");
  EXPECT_TRUE(adapters_of(again, two_layers(), builtin_families(), "").by_matrix == model.lora.by_matrix);
}

// Adapters of modules share A, which PEFT reads from each matrix's own tensor.
TEST(PeftConfig, AdaptersOfModulesBecomeThoseOfTheirMatrices) {
  ModelConfig model = two_layers();
  model.lora = {.dim = 8, .alpha = 16, .modules = {"linear_qkv"}};
  const PeftConfig written = read_peft_config(write_peft_config(model, builtin_families(), ""), "");
  EXPECT_EQ(adapters_of(written, two_layers(), builtin_families(), "").by_matrix.matrices.size(), 6U);
}

}  // namespace
}  // namespace primus
