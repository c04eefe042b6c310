#include "config/lora_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include "base/text/suggest.h"

namespace primus::config {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 12> kKeys{"enabled",
                                                 "adapters",
                                                 "dim",
                                                 "alpha",
                                                 "dropout",
                                                 "dropout_position",
                                                 "lora_A_init_method",
                                                 "lora_B_init_method",
                                                 "target_modules",
                                                 "base_weights",
                                                 "base_block",
                                                 "base_double_quant"};
// Keys of adapter_config.json, for adapters of single matrices.
constexpr std::array<std::string_view, 9> kPeftKeys{
    "use_rslora",      "use_dora",        "lora_bias",           "rank_pattern",  "alpha_pattern",
    "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"};
constexpr std::array<std::string_view, 4> kModules{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};

Error wrong(const Value& value, std::string_view key, std::string_view must) {
  return error_at(value.origin, fmt::format("lora.{} is {}; it must be {}", key, value.show(), must),
                  fmt::format("leave {} out for the default", key), value.width());
}

double number(const Value& value, std::string_view key, std::string_view must) {
  const bool is = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
  if (!is || !std::isfinite(value.real)) throw wrong(value, key, must);
  return value.real;
}

std::string one_of(const Value& value, std::string_view key, Names names) {
  if (value.kind == Value::Kind::kString && std::ranges::find(names, value.text) != names.end())
    return value.text;
  const std::string must = fmt::format("one of {}", fmt::join(names, ", "));
  Error error = wrong(value, key, must);
  if (const std::string near = did_you_mean(value.text, names); !near.empty()) error.add_hint(near);
  throw error;
}

void read(LoraSettings& settings, const std::string& key, const Value& value) {
  constexpr std::array<std::string_view, 2> kPositions{"pre", "post"}, kInit{"xavier", "kaiming"};
  constexpr std::array<std::string_view, 1> kZero{"zero"};
  constexpr std::array<std::string_view, 3> kBaseWeights{"nf4", "fp4", "none"};
  constexpr std::array<double, 7> kBlocks{64, 128, 256, 512, 1024, 2048, 4096};
  if (key == "enabled") {
    if (value.kind != Value::Kind::kBool) throw wrong(value, key, "true or false");
    settings.enabled = value.boolean;
  } else if (key == "adapters") {
    if (value.kind != Value::Kind::kString || value.text.empty()) throw wrong(value, key, "a PEFT folder");
    settings.adapters = value.text;
  } else if (key == "dim") {
    const double dim = number(value, key, "an integer");
    if (dim < 1 || dim > kMaxLoraDim || dim != std::floor(dim))
      throw wrong(value, key, fmt::format("an integer, at least 1 and at most {}", kMaxLoraDim));
    settings.dim = static_cast<std::int64_t>(dim);
  } else if (key == "alpha") {
    settings.alpha = number(value, key, "a number");
    if (settings.alpha <= 0 || settings.alpha > 1e6) throw wrong(value, key, "above 0 and at most 1e6");
  } else if (key == "dropout") {
    settings.dropout = number(value, key, "a number");
    // Checks the rate in fp32, the type in which dropout uses it, because a number just below 1 rounds to 1
    // in fp32.
    if (settings.dropout < 0 || static_cast<float>(settings.dropout) >= 1)
      throw wrong(value, key, "at least 0 and below 1, in fp32");
  } else if (key == "dropout_position") {
    settings.dropout_position = one_of(value, key, kPositions);
  } else if (key == "lora_A_init_method") {
    settings.a_init = one_of(value, key, kInit);
  } else if (key == "lora_B_init_method") {
    settings.b_init = one_of(value, key, kZero);
  } else if (key == "base_weights") {
    settings.base_weights = one_of(value, key, kBaseWeights);
  } else if (key == "base_block") {
    const double block = number(value, key, "an integer");
    if (std::ranges::find(kBlocks, block) == kBlocks.end())
      throw wrong(value, key, fmt::format("one of {}", fmt::join(kBlocks, ", ")));
    settings.base_block = static_cast<std::int64_t>(block);
  } else if (key == "base_double_quant") {
    if (value.kind != Value::Kind::kBool) throw wrong(value, key, "true or false");
    settings.base_double_quant = value.boolean;
  } else if (key == "target_modules") {
    if (!value.is_list() || value.items.empty())
      throw wrong(value, key, "a list, such as '[linear_qkv, linear_proj]' or '[q_proj, v_proj]'");
    settings.target_modules.clear();
    for (const Value& item : value.items) {
      std::string module = one_of(item, key, kModules);
      if (std::ranges::find(settings.target_modules, module) == settings.target_modules.end())
        settings.target_modules.push_back(std::move(module));
    }
    // Sorts the modules, so that equal settings compare equal.
    std::ranges::sort(settings.target_modules, {}, [](const std::string& module) {
      return std::ranges::find(kModules, module) - kModules.begin();
    });
  }
}

bool is_peft_key(std::string_view key) { return std::ranges::find(kPeftKeys, key) != kPeftKeys.end(); }

// Returns whether target_modules names single matrices. A name such as "linear_qvk" is a misspelt module.
bool names_matrices(const Value& targets) {
  const auto is_module = [](const Value& item) {
    return item.kind != Value::Kind::kString ||
           (item.text.starts_with("linear_") && item.text.find('.') == std::string::npos);
  };
  if (!targets.is_list()) return targets.kind == Value::Kind::kString && !is_module(targets);
  return !targets.items.empty() && std::ranges::none_of(targets.items, is_module);
}

// Reads the keys for adapters of single matrices.
void read_peft(const Value& lora, LoraSettings& settings) {
  const Value* const targets = lora.find("target_modules");
  const bool has_targets = targets && !targets->is_null();
  for (const Member& member : lora.members) {
    if (!is_peft_key(member.key) || member.value.is_null()) continue;
    if (has_targets && !names_matrices(*targets)) {
      throw error_at(member.origin,
                     fmt::format("lora.{} needs target_modules with names of matrices", member.key),
                     "for example target_modules: [q_proj, v_proj], or all-linear", member.key.size());
    }
    settings.peft.push_back(member);
  }
  if (has_targets && names_matrices(*targets)) settings.peft.push_back(*lora.find_member("target_modules"));
  if (settings.peft.empty()) return;
  settings.target_modules.clear();
  for (const auto& [key, only] : {std::pair{"lora_A_init_method", "kaiming"}, {"dropout_position", "pre"}}) {
    const Value* const value = lora.find(key);
    if (value && !value->is_null() && value->text != only)
      throw wrong(*value, key, fmt::format("{} for adapters of single matrices", only));
  }
}

// Returns a hint for the names that transformers and bitsandbytes use; empty for other names.
std::string_view quantisation_hint(std::string_view key) {
  if (key == "load_in_4bit" || key == "bnb_4bit_quant_type")
    return "write base_weights: nf4 (or fp4), which stores the frozen weights in 4 bits";
  if (key == "bnb_4bit_use_double_quant") return "write base_double_quant: true or false";
  if (key == "bnb_4bit_compute_dtype")
    return "omit it: products have the run's compute type (bf16: true or false)";
  return {};
}

// Refuses keys of 4-bit weights without base_weights.
void check_base_weights(const Value& lora, const LoraSettings& settings) {
  if (settings.base_weights != "none") return;
  for (const char* key : {"base_block", "base_double_quant"}) {
    const Member* const member = lora.find_member(key);
    if (!member || member->value.is_null()) continue;
    throw error_at(member->origin, fmt::format("lora.{} has no effect without lora.base_weights", key),
                   fmt::format("set base_weights: nf4, or omit {}", key), member->key.size());
  }
}

}  // namespace

std::span<const std::string_view> lora_modules() { return kModules; }

LoraSettings read_lora(const Value& lora) {
  LoraSettings settings;
  for (const Member& member : lora.members) {
    if (is_peft_key(member.key)) continue;
    if (std::ranges::find(kKeys, member.key) == kKeys.end()) {
      std::string near = did_you_mean(member.key, kKeys);
      if (near.empty()) near = did_you_mean(member.key, kPeftKeys);
      if (member.key == "r" || member.key == "rank") near = "did you mean 'dim'?";
      if (member.key == "lora_alpha" || member.key == "lora_dropout")
        near = fmt::format("did you mean '{}'?", member.key.substr(5));
      if (const std::string_view hint = quantisation_hint(member.key); !hint.empty()) near = hint;
      throw error_at(member.origin, fmt::format("unknown key '{}' of lora", member.key.substr(0, 80)),
                     near.empty() ? fmt::format("its keys are {}, {}", fmt::join(kKeys, ", "),
                                                fmt::join(kPeftKeys, ", "))
                                  : near,
                     member.key.size());
    }
    if (member.key == "target_modules" && names_matrices(member.value)) continue;
    if (!member.value.is_null()) read(settings, member.key, member.value);
  }
  read_peft(lora, settings);
  check_base_weights(lora, settings);
  if (settings.adapters.empty()) return settings;
  for (const Member& member : lora.members) {
    if (member.value.is_null() || member.key == "enabled" || member.key == "adapters" ||
        member.key == "dropout" || member.key.starts_with("base_"))
      continue;
    throw error_at(
        member.origin,
        fmt::format("lora.{} has no effect with lora.adapters: the folder has the settings", member.key),
        fmt::format("omit {}, or omit adapters to train new ones", member.key), member.key.size());
  }
  return settings;
}

}  // namespace primus::config
