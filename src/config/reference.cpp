// `config reference WORD`: the part of the key table that matches a word.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/experiment_keys.h"
#include "config/framework.h"
#include "config/key_hints.h"
#include "config/keys.h"

namespace primus::config {
namespace {

using Json = nlohmann::ordered_json;

// A key of the trainer, of the top level or of a module.
struct Entry {
  std::string_view name, help;
  const KeySpec* key = nullptr;  // null: not a trainer key
  std::string_view place;
};

std::vector<Entry> all_entries() {
  std::vector<Entry> entries;
  for (const ExperimentKey& key : kExperimentKeys)
    entries.push_back({key.name, key.help, nullptr, "top level"});
  for (const ExperimentKey& key : kModuleKeys)
    entries.push_back({key.name, key.help, nullptr, "modules.pre_trainer"});
  for (const KeySpec& key : all_keys())
    entries.push_back({key.name, key.help, &key, "modules.pre_trainer.overrides"});
  return entries;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::vector<std::string_view> names_elsewhere(std::string_view key) {
  std::vector<std::string_view> names;
  for (const Synonym& synonym : synonyms()) {
    if (synonym.key == key) names.push_back(synonym.name);
  }
  return names;
}

bool is_called(const Entry& entry, const std::string& word) {
  if (entry.name == word) return true;
  return entry.key && std::ranges::find(entry.key->aliases, word) != entry.key->aliases.end();
}

bool has(const Entry& entry, const std::string& word) {
  const auto in = [&](std::string_view text) { return lower(text).find(word) != std::string::npos; };
  const std::vector<std::string_view> elsewhere = names_elsewhere(entry.name);
  return in(entry.name) || in(entry.help) || (entry.key && std::ranges::any_of(entry.key->aliases, in)) ||
         std::ranges::any_of(elsewhere, in);
}

std::vector<Entry> entries_about(std::string_view text) {
  const std::string word = lower(text);
  std::vector<Entry> called, about;
  for (const Entry& entry : all_entries()) {
    if (is_called(entry, word)) called.push_back(entry);
    if (has(entry, word)) about.push_back(entry);
  }
  if (!called.empty()) return called;
  if (const std::size_t dot = text.find('.'); about.empty() && dot != std::string_view::npos && dot > 0)
    return entries_about(text.substr(0, dot));  // lora.dim is a part of the key lora
  if (about.empty())
    throw invalid(fmt::format("no setting matches '{}'", text.substr(0, 80)), hint_for_unknown_key(text));
  return about;
}

std::vector<std::string_view> frameworks_of(const KeySpec& key) {
  std::vector<std::string_view> names;
  for (std::string_view name : engine_names()) {
    if (key.has_meaning_for(*parse_framework(name))) names.push_back(name);
  }
  return names;
}

std::string text_of(const Entry& entry) {
  std::string text = fmt::format("{}\n", entry.name);
  const auto line = [&](std::string_view what, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<12}{}\n", what, value);
  };
  line("meaning", std::string(entry.help));
  if (!entry.key) {
    line("place", std::string(entry.place));
    return text;
  }
  const KeySpec& key = *entry.key;
  line("group", std::string(key.group_title));
  std::string type = describe_type(key);
  if (const std::string range = describe_range(key); !range.empty()) type += ", " + range;
  if (!key.choices.empty()) type += fmt::format(": {}", fmt::join(key.choices, ", "));
  line("type", type);
  if (!std::holds_alternative<std::monostate>(key.field)) line("default", describe_default(key));
  line("in Primus", std::string(key.primus_default));
  line("frameworks", fmt::format("{}", fmt::join(frameworks_of(key), ", ")));
  if (!key.native_values.empty()) line("native", fmt::format("only {}", fmt::join(key.native_values, ", ")));
  if (key.native_class != KeyClass::kNone) line("natively", std::string(describe(key.native_class)));
  line("instead", std::string(key.instead));
  if (!key.aliases.empty()) line("also", fmt::format("{}", fmt::join(key.aliases, ", ")));
  if (const auto names = names_elsewhere(key.name); !names.empty())
    line("elsewhere", fmt::format("{}", fmt::join(names, ", ")));
  return text;
}

Json json_of(const Entry& entry) {
  Json json{{"name", entry.name}, {"meaning", entry.help}, {"place", entry.place}};
  json["elsewhere"] = names_elsewhere(entry.name);
  if (!entry.key) return json;
  const KeySpec& key = *entry.key;
  json["group"] = key.group_title;
  json["type"] = describe_type(key);
  json["minimum"] = key.lower ? Json(*key.lower) : Json();
  json["maximum"] = key.upper ? Json(*key.upper) : Json();
  json["minimum_excluded"] = key.lower_open;
  json["maximum_excluded"] = key.upper_open;
  json["choices"] = key.choices;
  const bool has_field = !std::holds_alternative<std::monostate>(key.field);
  json["default"] = has_field ? Json(describe_default(key)) : Json();
  json["primus_default"] = key.primus_default.empty() ? Json() : Json(key.primus_default);
  json["required"] = key.is_required;
  json["frameworks"] = frameworks_of(key);
  json["native_values"] = key.native_values;
  json["native_class"] = key.native_class == KeyClass::kNone ? Json() : Json(describe(key.native_class));
  json["instead"] = key.instead.empty() ? Json() : Json(key.instead);
  json["aliases"] = key.aliases;
  return json;
}

}  // namespace

std::string reference_text(std::string_view word) {
  std::string text;
  for (const Entry& entry : entries_about(word)) text += (text.empty() ? "" : "\n") + text_of(entry);
  return text;
}

std::string reference_json(std::string_view word) {
  Json list = Json::array();
  for (const Entry& entry : entries_about(word)) list.push_back(json_of(entry));
  return list.dump(2) + "\n";
}

}  // namespace primus::config
