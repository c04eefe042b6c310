#include "lm/generate/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus {
namespace {

// Keys that would change the text but are not supported, each with the value that has no effect. null never
// has an effect.
const std::vector<std::pair<const char*, nlohmann::json>>& unsupported_keys() {
  static const std::vector<std::pair<const char*, nlohmann::json>> keys = {
      {"bad_words_ids", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"constraints", nullptr},
      {"diversity_penalty", 0},
      {"dola_layers", nullptr},
      {"encoder_no_repeat_ngram_size", 0},
      {"encoder_repetition_penalty", 1},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"exponential_decay_length_penalty", nullptr},
      {"force_words_ids", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"frequency_penalty", 0},
      {"guidance_scale", 1},
      {"max_new_tokens", nullptr},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"min_p", 0},
      {"no_repeat_ngram_size", 0},
      {"num_beams", 1},
      {"penalty_alpha", 0},
      {"presence_penalty", 0},
      {"repetition_penalty", 1},
      {"sequence_bias", nullptr},
      {"stop_strings", nullptr},
      {"suppress_tokens", nullptr},
      {"top_h", nullptr},
      {"typical_p", 1},
      {"watermarking_config", nullptr},
  };
  return keys;
}

}  // namespace

std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids) {
  nlohmann::json config = text.empty() ? nlohmann::json::object() : parse_json_object(text, name);
  const nlohmann::json listed = config.value("eos_token_id", nlohmann::json());
  std::vector<std::int64_t> all;
  for (const nlohmann::json& id : listed.is_array() ? listed : nlohmann::json::array({listed})) {
    if (id.is_null()) continue;
    if (!id.is_number_integer()) throw invalid("'eos_token_id' must be token ids").at(name);
    all.push_back(id.get<std::int64_t>());
  }
  for (const std::int64_t id : ids) {
    if (std::ranges::find(all, id) == all.end()) all.push_back(id);
  }
  if (all.empty()) return std::string(text);
  config["eos_token_id"] = all.size() == 1 ? nlohmann::json(all.front()) : nlohmann::json(all);
  return json_text(config) + "\n";
}

std::string with_special_ids(std::string_view text, const std::string& name, const ModelConfig& config) {
  nlohmann::json result = parse_json_object(text, name);
  for (const auto& [key, id] : {std::pair("bos_token_id", config.bos_id), {"pad_token_id", config.pad_id}}) {
    result.erase(key);
    if (id) result[key] = *id;
  }
  result.erase("eos_token_id");
  return with_stop_ids(json_text(result), name, config.eos_ids);
}

SamplingDefaults read_sampling_defaults(std::string_view text, const std::string& name) {
  const nlohmann::json config = parse_json_object(text, name);
  SamplingDefaults defaults;
  const auto unused = [&](const char* key, const nlohmann::json& value) {
    defaults.unused.push_back(fmt::format("{} {}", key, json_text(value, -1)));
  };
  // Returns the number if it is in [low, high].
  const auto number = [&](const char* key, double low, double high) -> std::optional<double> {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return std::nullopt;
    const double value = found->is_number() ? found->get<double>() : std::nan("");
    if (value >= low && value <= high) return value;
    unused(key, *found);
    return std::nullopt;
  };
  const nlohmann::json sampled = config.value("do_sample", nlohmann::json());
  constexpr double kHighest = 1e6, kMostTokens = 1e9;
  defaults.temperature = number("temperature", 0, kHighest);
  if (sampled == true && !defaults.temperature) defaults.temperature = 1;
  if (sampled == false) defaults.temperature = 0;
  if (const auto k = number("top_k", -1, kMostTokens))  // serving engines write -1 for all tokens
    defaults.top_k = static_cast<std::int64_t>(std::max(*k, 0.0));
  defaults.top_p = number("top_p", 0x1p-52, 1);
  for (const auto& [key, neutral] : unsupported_keys()) {
    const auto found = config.find(key);
    const bool says_nothing = found == config.end() || found->is_null() || found->empty();
    if (!says_nothing && *found != neutral) unused(key, *found);
  }
  return defaults;
}

}  // namespace primus
