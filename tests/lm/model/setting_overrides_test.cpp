// Tests that a changed architecture setting of a preset changes the computation or the training, or gives an
// error or a warning.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/experiment.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/family.h"

namespace primus {
namespace {

config::Experiment experiment(const std::string& preset, const std::vector<std::string>& overrides) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs = {PRIMUS_SOURCE_DIR "/presets"};
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {config: pre_trainer.yaml, model: " +
      preset + ".yaml, overrides: {mock_data: true, seq_length: 512, vocab_size: 1030}}}\n";
  return config::load_experiment_text(text, "exp.yaml", overrides, options);
}

// Returns other values of a key, as on the command line.
std::vector<std::string> others(const config::KeySpec& key, const config::Value& value) {
  using Kind = config::Value::Kind;
  std::vector<std::string> others;
  for (const std::string_view choice : key.choices) {
    if (choice != value.text) others.emplace_back(choice);
  }
  if (!others.empty()) return others;
  switch (key.type) {
    case config::KeyType::kBool:
      if (value.is_null()) return {"true", "false"};
      return {value.boolean ? "false" : "true"};
    case config::KeyType::kInt:
      if (value.is_null()) return {"2"};
      return {fmt::format("{}", value.integer * 2), fmt::format("{}", value.integer / 2)};
    case config::KeyType::kFloat:
      if (value.kind == Kind::kInt) return {fmt::format("{}", value.integer + 1)};
      return {value.is_null() ? "1.5" : fmt::format("{}", value.real * 1.5 + 0.25)};
    case config::KeyType::kStrings:
    case config::KeyType::kList:
      return {"3", "[64, 0]"};
    default:
      return {"qwen2"};
  }
}

// Resets the fields that affect neither what this model computes nor how it trains.
ModelConfig effective(ModelConfig c) {
  if (c.moe.experts > 0 && c.dense_layers().empty()) c.ffn = 0;
  if (c.attention.latent.kv_rank > 0) c.kv_heads = c.head_dim = 0;
  if (c.layers_without_rope().empty()) c.attention.attn_scale = 0;
  if (c.attention.attn_scale == 0) c.attention.floor_scale = 0;
  if (c.local_layers().empty()) c.attention.window = c.attention.chunk = 0;
  if (!c.mtp.enabled) c.mtp = {};
  RopeScaling& rope = c.rope_scaling;
  const RopeScaling none;
  using Kind = RopeScaling::Kind;
  if (rope.kind == Kind::kNone) rope = none;
  if (rope.kind != Kind::kLlama3) {
    rope.low_freq_factor = none.low_freq_factor;
    rope.high_freq_factor = none.high_freq_factor;
  }
  if (rope.kind != Kind::kYarn) {
    rope.beta_fast = none.beta_fast;
    rope.beta_slow = none.beta_slow;
    rope.mscale = rope.mscale_all_dim = none.mscale;
    rope.truncate = none.truncate;
  }
  if (rope.kind == Kind::kLinear) rope.original_max_positions = none.original_max_positions;
  if (rope.mscale_all_dim.value_or(0) == 0) rope.mscale = none.mscale;
  MoeConfig::Training& training = c.moe.training;
  if (c.moe.experts == 0) training = {};
  if (training.balance_loss == 0) training.balance_sequences = training.balance_step = false;
  if (training.capacity_factor == 0) training.drop_lightest = true;
  if (c.moe.router.groups == 1) c.moe.router.top_groups = 1;
  return c;
}

enum class Outcome { kWithoutWord, kWarned, kChanged, kRefused };

Outcome outcome(const std::string& preset, const std::string& setting, const ModelConfig& original,
                const FamilyRegistry& families) {
  try {
    config::Experiment changed = experiment(preset, {setting});
    const ModelConfig model = model_config_of(changed, std::nullopt, families, &changed.warnings);
    if (effective(model) != effective(original)) return Outcome::kChanged;
    return changed.warnings.empty() ? Outcome::kWithoutWord : Outcome::kWarned;
  } catch (const Error& error) {
    EXPECT_FALSE(error.location().empty()) << preset << " " << setting << ": " << error.what();
    return Outcome::kRefused;
  }
}

TEST(SettingOverrides, AreAcceptedOrRefusedOnEveryMixture) {
  const FamilyRegistry families = builtin_families();
  // Megatron-LM's switches without meaning for these families (Family::switches).
  const std::set<std::pair<std::string, std::string_view>> either = {
      {"deepseek_v2", "rotary_interleaved"},
      {"deepseek_v3", "rotary_interleaved"},
      {"gpt_oss", "swiglu"},
      {"gpt_oss", "use_sink_attention"}};  // always has sinks
  int settings = 0;
  for (const char* preset : {"llama4_17B16E", "llama4_17B128E", "mixtral_8x7B_v0.1", "qwen3_30B_A3B",
                             "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss_20B"}) {
    config::Experiment plain = experiment(preset, {});
    const ModelConfig original = model_config_of(plain, std::nullopt, families, &plain.warnings);
    EXPECT_EQ(plain.warnings, std::vector<std::string>{});
    for (const config::KeySpec& key : config::all_keys()) {
      const bool architecture = key.group == "model" || key.group == "latent" || key.group == "moe";
      if (!architecture || !key.has_meaning_for(config::Framework::kNative)) continue;
      const config::Value value = config::current_value(key, plain.trainer);
      std::size_t without_word = 0;
      const std::vector<std::string> values = others(key, value);
      for (const std::string& other : values) {
        if (other == value.text) continue;  // doubling 0 gives no other value
        const std::string setting = fmt::format("{}={}", key.name, other);
        const bool silent = outcome(preset, setting, original, families) == Outcome::kWithoutWord;
        if (silent) ++without_word;
        // Where the family fixes a setting, or several values mean the same, another value may have no
        // effect.
        const bool may_agree =
            value.is_null() || !key.choices.empty() || either.contains({original.family, key.name});
        // A model without dense blocks accepts a dense width that equals the width of the experts.
        const bool of_experts = key.name == "ffn_hidden_size" && other == std::to_string(original.moe.ffn);
        EXPECT_FALSE(silent && !may_agree && !of_experts) << preset << " " << setting << " has no effect";
        ++settings;
      }
      if (!either.contains({original.family, key.name})) {
        EXPECT_LT(without_word, values.size()) << preset << " " << key.name;
      }
    }
  }
  EXPECT_GT(settings, 1000);
}

using Warnings = std::vector<std::string>;
Warnings warnings(const std::string& preset, const std::vector<std::string>& overrides) {
  config::Experiment changed = experiment(preset, overrides);
  model_config_of(changed, std::nullopt, builtin_families(), &changed.warnings);
  return changed.warnings;
}

// Adapters for a module that latent attention does not have give a warning.
TEST(SettingOverrides, OfAbsentModulesGiveAWarning) {
  const std::string load = "load=weights";
  const Warnings warning{
      "command line: latent attention has no linear_qkv, so its queries, keys and values have no adapters, "
      "as in AMD Primus"};
  EXPECT_EQ(warnings("deepseek_v2_lite", {load, "lora={enabled: true}"}), warning);
  EXPECT_EQ(warnings("deepseek_v2_lite", {load, "lora={enabled: true, target_modules: [linear_proj]}"}),
            Warnings{});
  EXPECT_EQ(warnings("qwen3_30B_A3B", {load, "lora={enabled: true}"}), Warnings{});
  EXPECT_EQ(warnings("llama3_8B", {load, "lora={enabled: true, dropout_position: post}"}),
            Warnings{"command line: lora.dropout_position has an effect only with lora.dropout"});
  EXPECT_EQ(warnings("llama3_8B", {load, "lora={enabled: true, dropout_position: post, dropout: 0.1}"}),
            Warnings{});
}

// Without trainable weights, a step would change nothing.
TEST(SettingOverrides, AdaptersWithoutAModuleAreRefused) {
  std::string layers = "lfm_layer_types=[conv";
  for (int layer = 1; layer < 16; ++layer) layers += ", conv";
  layers += "]";
  const auto refusal = [](const std::string& preset,
                          const std::vector<std::string>& overrides) -> std::string {
    try {
      warnings(preset, overrides);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string attention = "lora={enabled: true, target_modules: [linear_qkv, linear_proj]}";
  EXPECT_NE(refusal("lfm2_350M", {layers, attention}).find("names only attention modules"),
            std::string::npos);
  EXPECT_EQ(refusal("lfm2_350M", {attention}), "");
  EXPECT_EQ(refusal("lfm2_350M", {layers, "lora={enabled: true}"}), "");
  EXPECT_NE(refusal("deepseek_v2_lite", {"lora={enabled: true, target_modules: [linear_qkv]}"})
                .find("names only linear_qkv"),
            std::string::npos);
}

// A key of layer kinds that the model does not have gives a warning.
TEST(SettingOverrides, KeysOfOtherKindsOfLayersAreNamed) {
  EXPECT_EQ(warnings("llama3_8B", {"kv_lora_rank=64"}),
            Warnings{"command line: kv_lora_rank has an effect only with multi_latent_attention"});
  EXPECT_EQ(warnings("llama3_8B", {"hc_eps=0.1"}),
            Warnings{"command line: hc_eps has an effect only with hc_mult"});
  for (const std::string setting :
       {"num_hash_layers=1", "routed_expert_hidden_size=64", "latent_moe_use_norm=true"}) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_EQ(warnings("llama3_8B", {setting}),
              Warnings{"command line: " + key + " has an effect only with num_experts"});
  }
  const Warnings heads{
      "command line: num_query_groups has an effect only without multi_latent_attention, which has separate "
      "head dimensions"};
  EXPECT_EQ(warnings("deepseek_v3", {"num_query_groups=2"}), heads);
  EXPECT_EQ(warnings("kimi_linear_48B_A3B", {"num_query_groups=2"}), heads);  // its switch is ignored
  EXPECT_EQ(warnings("kimi_linear_48B_A3B", {"kv_lora_rank=64"}), Warnings{});
  EXPECT_EQ(
      warnings("kimi_linear_48B_A3B", {"rotary_base=500000"}),
      Warnings{"command line: rotary_base has an effect only with layers that rotate queries and keys by "
               "their positions"});
  EXPECT_EQ(warnings("deepseek_v4_flash", {"window_size=[64, 0]"}),
            Warnings{"command line: window_size has an effect only without compress_ratios, whose window is "
                     "attn_sliding_window"});
}

// Changing a width that no layer uses gives a warning.
TEST(SettingOverrides, OfAbsentLayersGiveAWarning) {
  const Warnings warning{
      "command line: ffn_hidden_size affects only blocks without experts, but every block has experts: their "
      "width is moe_ffn_hidden_size"};
  EXPECT_EQ(warnings("qwen3_30B_A3B", {"ffn_hidden_size=12288"}), warning);
  EXPECT_EQ(warnings("llama4_17B16E", {"ffn_hidden_size=4096"}), warning);
  EXPECT_EQ(warnings("llama4_17B128E", {"ffn_hidden_size=4096"}), Warnings{});  // used by every second block
  EXPECT_EQ(warnings("deepseek_v3", {"ffn_hidden_size=4096"}), Warnings{});     // used by 3 blocks
  EXPECT_EQ(warnings("mixtral_8x7B_v0.1", {"ffn_hidden_size=4096", "moe_ffn_hidden_size=4096"}), Warnings{});
}

// Removing a model's experts gives an error that names the user's override, not the preset's keys.
TEST(SettingOverrides, WithoutExpertsAreNamedInErrors) {
  for (const char* preset : {"mixtral_8x7B_v0.1", "qwen3_30B_A3B", "llama4_17B16E"}) {
    try {
      model_config_of(experiment(preset, {"num_experts=null"}), std::nullopt, builtin_families());
      ADD_FAILURE() << preset;
    } catch (const Error& error) {
      EXPECT_EQ(error.location(), "command line") << preset;
      EXPECT_STREQ(error.what(), fmt::format("num_experts is null, but model_type {} is a mixture of experts",
                                             experiment(preset, {}).trainer->model_type)
                                     .c_str());
    }
  }
}

// DeepSeek models are dense without experts, whatever else the preset sets about experts.
TEST(SettingOverrides, DeepSeekMayBeDense) {
  for (const char* preset : {"deepseek_v2", "deepseek_v3"}) {
    const config::Experiment dense = experiment(preset, {"num_experts=null"});
    const ModelConfig model = model_config_of(dense, std::nullopt, builtin_families());
    EXPECT_EQ(dense.warnings, std::vector<std::string>{});
    EXPECT_EQ(model.moe.experts, 0);
    EXPECT_EQ(model.ffn, dense.trainer->ffn_hidden_size);
  }
}

// If two widths must agree, the hint names the width that was not changed.
TEST(SettingOverrides, OfOneWidthGetAHintAboutTheOther) {
  const auto hint = [](const std::string& preset, const std::vector<std::string>& overrides) {
    try {
      model_config_of(experiment(preset, overrides), std::nullopt, builtin_families());
      return std::string();
    } catch (const Error& error) {
      return error.location() + ": " + error.hint();
    }
  };
  EXPECT_EQ(hint("llama4_17B16E", {"moe_ffn_hidden_size=4096"}),
            "command line: also set moe_shared_expert_intermediate_size to 4096");
  EXPECT_EQ(hint("llama4_17B16E", {"moe_shared_expert_intermediate_size=16384"}),
            "command line: also set moe_ffn_hidden_size to 16384");
  EXPECT_EQ(hint("llama4_17B16E", {"moe_ffn_hidden_size=4096", "moe_shared_expert_intermediate_size=4096"}),
            "");
  EXPECT_EQ(hint("llama4_17B16E", {"ffn_hidden_size=4096"}), "");
  EXPECT_EQ(hint("mixtral_8x7B_v0.1", {"moe_ffn_hidden_size=4096"}),
            "command line: also set ffn_hidden_size to 4096");
  EXPECT_EQ(hint("gpt_oss_20B", {"ffn_hidden_size=4096"}),
            "command line: also set moe_ffn_hidden_size to 4096");
  EXPECT_EQ(hint("deepseek_v3", {"moe_shared_expert_intermediate_size=3000"}),
            "command line: set moe_shared_expert_intermediate_size to a multiple of moe_ffn_hidden_size");
}

}  // namespace
}  // namespace primus
