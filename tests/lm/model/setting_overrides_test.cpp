// A setting of the architecture that somebody changes on a preset changes the model, or is refused: none is
// taken without effect.
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

// Other values of a key, as the command line takes them.
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

enum class Outcome { kWithoutWord, kWarned, kChanged, kRefused };

Outcome outcome(const std::string& preset, const std::string& setting, const ModelConfig& original,
                const FamilyRegistry& families) {
  try {
    const config::Experiment changed = experiment(preset, {setting});
    if (model_config_of(changed, std::nullopt, families) != original) return Outcome::kChanged;
    return changed.warnings.empty() ? Outcome::kWithoutWord : Outcome::kWarned;
  } catch (const Error& error) {
    EXPECT_FALSE(error.location().empty()) << preset << " " << setting << ": " << error.what();
    return Outcome::kRefused;
  }
}

TEST(SettingOverrides, AreTakenOrRefusedOnEveryMixture) {
  const FamilyRegistry families = builtin_families();
  // Megatron-LM's switches that say nothing of these families (Family::switches).
  const std::set<std::pair<std::string, std::string_view>> either = {
      {"deepseek_v2", "rotary_interleaved"}, {"deepseek_v3", "rotary_interleaved"}, {"gpt_oss", "swiglu"}};
  int settings = 0;
  for (const char* preset : {"llama4_17B16E", "llama4_17B128E", "mixtral_8x7B_v0.1", "qwen3_30B_A3B",
                             "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss_20B"}) {
    const config::Experiment plain = experiment(preset, {});
    EXPECT_EQ(plain.warnings, std::vector<std::string>{});
    const ModelConfig original = model_config_of(plain, std::nullopt, families);
    for (const config::KeySpec& key : config::all_keys()) {
      const bool architecture = key.group == "model" || key.group == "latent" || key.group == "moe";
      if (!architecture || !key.has_meaning_for(config::Framework::kNative)) continue;
      const config::Value value = config::current_value(key, plain.trainer);
      std::size_t without_word = 0;
      const std::vector<std::string> values = others(key, value);
      for (const std::string& other : values) {
        const std::string setting = fmt::format("{}={}", key.name, other);
        const bool silent = outcome(preset, setting, original, families) == Outcome::kWithoutWord;
        if (silent) ++without_word;
        // Where a setting is as the family has it, or one of several names for the same, a value may agree.
        const bool may_agree =
            value.is_null() || !key.choices.empty() || either.contains({original.family, key.name});
        EXPECT_FALSE(silent && !may_agree) << preset << " " << setting << " has no effect";
        ++settings;
      }
      if (!either.contains({original.family, key.name})) {
        EXPECT_LT(without_word, values.size()) << preset << " " << key.name;
      }
    }
  }
  EXPECT_GT(settings, 1000);
}

// What belongs together is named together.
TEST(SettingOverrides, OfOneWidthNameTheOther) {
  const auto hint = [](const std::string& preset, const std::vector<std::string>& overrides) {
    try {
      model_config_of(experiment(preset, overrides), std::nullopt, builtin_families());
      return std::string();
    } catch (const Error& error) {
      return error.location() + ": " + error.hint();
    }
  };
  EXPECT_EQ(hint("llama4_17B16E", {"moe_ffn_hidden_size=4096"}),
            "command line: set moe_shared_expert_intermediate_size to 4096, too");
  EXPECT_EQ(hint("llama4_17B16E", {"moe_shared_expert_intermediate_size=16384"}),
            "command line: set moe_ffn_hidden_size to 16384, too");
  EXPECT_EQ(hint("llama4_17B16E", {"moe_ffn_hidden_size=4096", "moe_shared_expert_intermediate_size=4096"}),
            "");
  EXPECT_EQ(hint("llama4_17B16E", {"ffn_hidden_size=4096"}), "");  // of dense blocks
  EXPECT_EQ(hint("mixtral_8x7B_v0.1", {"moe_ffn_hidden_size=4096"}),
            "command line: set ffn_hidden_size to 4096, too");
  EXPECT_EQ(hint("gpt_oss_20B", {"ffn_hidden_size=4096"}),
            "command line: set moe_ffn_hidden_size to 4096, too");
  EXPECT_EQ(hint("deepseek_v3", {"moe_shared_expert_intermediate_size=3000"}),
            "command line: set moe_shared_expert_intermediate_size to a multiple of moe_ffn_hidden_size");
}

}  // namespace
}  // namespace primus
