// What an experiment says about a model against what the weights it loads say.
#include "lm/train/loaded_model.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "base/error.h"
#include "lm/model/family.h"

namespace primus {
namespace {

config::Experiment experiment(const std::string& overrides) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  return config::load_experiment_text(
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n    overrides:\n"
      "      num_layers: 4\n      hidden_size: 64\n      num_attention_heads: 4\n      vocab_size: 256\n"
      "      mock_data: true\n" +
          overrides,
      "exp.yaml", {}, options);
}

const std::string kLlama4 =
    "      model_type: llama4_text\n      num_experts: 8\n      moe_router_topk: 1\n"
    "      moe_shared_expert_intermediate_size: 96\n      moe_ffn_hidden_size: 96\n"
    "      attention_chunk_size: 64\n      no_rope_freq: 4\n      attention_temperature_scale: 0.1\n";
const std::string kGptOss =
    "      model_type: gpt_oss\n      num_experts: 8\n      window_size: [127, 0]\n"
    "      window_attn_skip_freq: 2\n      rope_scaling_type: yarn\n      mscale: 0.7\n";

struct Loaded {
  std::string refused;
  LoadedModel model;
};

// The experiment's model, changed: as weights have it that were trained otherwise.
Loaded load(const std::string& overrides, const std::function<void(ModelConfig&)>& change) {
  const config::Experiment e = experiment(overrides);
  const ModelConfig ours = model_config_of(e, std::nullopt, builtin_families());
  ModelConfig theirs = ours;
  change(theirs);
  try {
    return {"", reconcile_with_loaded(e, ours, theirs, "config.json")};
  } catch (const Error& error) {
    return {error.what(), {}};
  }
}

TEST(LoadedModel, WhatWeightsWereTrainedWithIsNotContradicted) {
  const std::tuple<std::string, void (*)(ModelConfig&), std::string> contradictions[] = {
      {kLlama4, [](ModelConfig& c) { c.attention.attn_scale = 0.2; },
       "attention_temperature_scale is 0.1, and config.json says 0.2"},
      {kLlama4, [](ModelConfig& c) { c.attention.no_rope_layers = {1}; },
       "no_rope_freq is layers [3], and config.json says layers [1]"},
      {kLlama4 + "      attention_temperature_floor: 16\n",
       [](ModelConfig& c) { c.attention.floor_scale = 8; },
       "attention_temperature_floor is 16, and config.json says 8"},
      {kLlama4 + "      qk_l2_norm: true\n", [](ModelConfig& c) { c.attention.head_norm = false; },
       "qk_l2_norm is true, and config.json says false"},
      {kGptOss,
       [](ModelConfig& c) {
         c.attention.local_layers = {1, 3};
       },
       "window_attn_skip_freq is layers [0, 2], and config.json says layers [1, 3]"},
      {"      model_type: mixtral\n      num_experts: 8\n      moe_router_pre_softmax: false\n",
       [](ModelConfig& c) { c.moe.router.normalise = false; },
       "moe_router_pre_softmax is false, and config.json says true"}};
  for (const auto& [overrides, change, expected] : contradictions) {
    EXPECT_EQ(load(overrides, [](ModelConfig&) {}).refused, "");
    EXPECT_EQ(load(overrides, change).refused, expected);
  }
}

TEST(LoadedModel, RotaryKeysAreTakenWithANote) {
  const auto change = [](ModelConfig& c) {
    c.rope_scaling.mscale = 1;
    c.rope_scaling.truncate = false;
  };
  const Loaded loaded = load(kGptOss + "      yarn_correction_range_round_to_int: true\n", change);
  EXPECT_EQ(loaded.refused, "");
  EXPECT_EQ(loaded.model.config.rope_scaling.mscale, 0.7);
  EXPECT_TRUE(loaded.model.config.rope_scaling.truncate);
  ASSERT_EQ(loaded.model.notes.size(), 2U);
  EXPECT_EQ(
      loaded.model.notes[0],
      "yarn_correction_range_round_to_int is true, and config.json says false: the experiment's is taken");
  EXPECT_EQ(loaded.model.notes[1], "mscale is 0.7, and config.json says 1: the experiment's is taken");
  // Nobody said so.
  EXPECT_EQ(load(kGptOss, [](ModelConfig& c) { c.rope_scaling.mscale_all_dim = 0.5; })
                .model.config.rope_scaling.mscale_all_dim,
            0.5);
}

}  // namespace
}  // namespace primus
