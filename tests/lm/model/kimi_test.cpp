// Tests Kimi Linear and Kimi K3: what the keys of config.json and the settings mean, and which keys the
// errors name.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "config/experiment.h"
#include "config_json.h"
#include "lm/model/blocks/attention_residual.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {
namespace {

using nlohmann::json;
using test::golden;
using test::read;
using test::refusal;
using Layers = std::vector<std::int64_t>;

const std::filesystem::path kSource = PRIMUS_SOURCE_DIR;

TEST(Kimi, LayersAreListedByNamesOrNumbers) {
  json root = golden("kimi_linear");
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 1, 3}));
  root.erase("layer_types");
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 1, 3}));
  root["linear_attn_config"]["kda_layers"] = {4, 1};
  EXPECT_EQ(refusal(root), "'full_attn_layers' and kda_layers together must name each layer exactly once");
  root["linear_attn_config"]["full_attn_layers"] = {2, 3};
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 3}));
  root["linear_attn_config"]["kda_layers"] = {4, 4};
  EXPECT_EQ(refusal(root), "'kda_layers' names a layer twice");
  root["linear_attn_config"].erase("kda_layers");
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 1, 2, 3}));  // transformers' default pattern
  root["layer_types"] = {"linear_attention", "full_attention", "mamba", "linear_attention"};
  EXPECT_EQ(refusal(root), "'layer_types': \"mamba\" is not supported for this model family");
}

TEST(Kimi, DenseLayersAreListedOrCounted) {
  json root = golden("kimi_linear");
  root["mlp_layer_types"] = {"sparse", "dense", "sparse", "sparse"};
  EXPECT_EQ(read(root).dense_layers(), (Layers{1}));
  root.erase("mlp_layer_types");
  EXPECT_EQ(read(root).dense_layers(), (Layers{0}));
  root["first_k_dense_replace"] = 2;
  EXPECT_EQ(read(root).dense_layers(), (Layers{0, 1}));
}

TEST(Kimi, LinearHasNoneOfK3sParts) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"hidden_act", "situ"},
                                   {"mla_use_output_gate", true},
                                   {"mla_use_nope", false},
                                   {"attn_res_block_size", 12},
                                   {"routed_expert_hidden_size", 32},
                                   {"tie_word_embeddings", true},  // not tied in transformers
                                   {"moe_router_activation_func", "softmax"}}) {
    json root = golden("kimi_linear");
    root[key] = value;
    EXPECT_EQ(refusal(root).find("'" + std::string(key) + "'"), 0U) << key << refusal(root);
  }
}

TEST(Kimi, K3RoundTrips) {
  const ModelConfig c = read(golden("kimi_k3"));
  EXPECT_EQ(c.situ_beta, 4);
  EXPECT_EQ(c.situ_linear_beta, 25);
  EXPECT_EQ(c.linear.gate_lower_bound, -5);
  EXPECT_TRUE(c.linear.full_rank_gate && c.attention.latent.output_gate && c.attention.latent.nope);
  EXPECT_EQ(c.moe.latent, 32);
  EXPECT_TRUE(c.moe.latent_norm);
  EXPECT_EQ(c.residual_block, 2);
  EXPECT_EQ(c.streams(), 4);
  for (std::int64_t layer = 0; layer < 5; ++layer) EXPECT_EQ(residual_checkpoints(c, layer), (layer + 1) / 2);
  EXPECT_EQ(read(json::parse(write_model_config(c, DType::kF32, builtin_families()))), c);
  json root = golden("kimi_k3");
  root.erase("activation_situ_beta");
  EXPECT_EQ(read(root).situ_beta, 1);  // the default of the published code
  root["attn_res_block_size"] = 1;
  root["num_hidden_layers"] = 100;
  root["linear_attn_config"].erase("kda_layers");
  EXPECT_EQ(refusal(root), "'attn_res_block_size' makes more than 63 checkpoints of the residual stream");
}

// Returns "line: message" of the error; "" if there is none.
std::string refused(const std::string& overrides) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs = {kSource / "presets"};
  try {
    const std::string text =
        "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n"
        "    model: kimi_k3_curve.yaml\n    overrides:\n      mock_data: true\n" +
        overrides;  // starts at line 10
    model_config_of(config::load_experiment_text(text, "exp.yaml", {}, options), std::nullopt,
                    builtin_families());
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.location().substr(0, error.location().rfind(':')) + ": " + error.what();
  }
  return "";
}

TEST(Kimi, SettingsDescribeK3) {
  EXPECT_EQ(refused(""), "");
  EXPECT_EQ(refused("      multi_latent_attention: true\n"), "");
  EXPECT_EQ(refused("      mtp_num_layers: 1\n"), "");
  EXPECT_EQ(refused("      mla_use_nope: false\n"), "exp.yaml:10: model_type kimi_k3 has mla_use_nope: true");
  EXPECT_EQ(refused("      moe_router_bias_update_rule: quantile\n"), "");
  EXPECT_EQ(
      refused("      moe_router_bias_update_rule: quantile\n      quantile_balancing_margin_min: 2.0\n"),
      "exp.yaml:11: quantile_balancing_margin_max is 1, but quantile_balancing_margin_min is 2");
  EXPECT_EQ(refused("      linear_attention_freq: \"([0]*1+[1]*23)\"\n      mtp_num_layers: 1\n"),
            "exp.yaml:11: multi-token prediction does not support models with linear attention");
}

}  // namespace
}  // namespace primus
