// Writes the resolved experiment as text: as YAML that can be loaded again, and as the output of `config
// show`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/text/secrets.h"
#include "config/experiment.h"
#include "config/foreign.h"
#include "config/keys.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

// Returns whether some reader of YAML 1.1 parses the word as a boolean: y and n by the specification, the
// other words also in PyYAML. Ignores case.
bool is_old_bool(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (std::string_view word : {"y", "n", "yes", "no", "on", "off"}) {
    if (lower == word) return true;
  }
  return false;
}

// Writes a string as a YAML scalar. The scalar has no quotes if Primus and PyYAML both read the unquoted text
// as this string. Otherwise, the scalar has double quotes and JSON's escapes. Escapes ${, because the loader
// would read it as a variable.
std::string yaml_string(std::string_view text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "${") escaped += '$';
    escaped += text[i];
  }
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '+' || c == '-';
  };
  // Requires a letter, '_', '/' or '.' at the start: other readers may parse a text that begins with a digit
  // as a date, an octal or a sexagesimal number.
  const auto begins_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/' || c == '.';
  };
  bool plain = !escaped.empty() && begins_plain(escaped[0]) && !is_old_bool(escaped) &&
               plain_scalar(escaped, {}).kind == Value::Kind::kString;
  for (char c : escaped) plain = plain && is_plain(c);
  return plain ? escaped : nlohmann::json(escaped).dump();
}

// Writes a number so that PyYAML reads it as one: PyYAML requires a dot in numbers with an exponent, and
// before inf.
std::string yaml_float(const Value& value) {
  if (std::isnan(value.real)) return ".nan";
  if (std::isinf(value.real)) return value.real < 0 ? "-.inf" : ".inf";
  std::string text = value.text;
  const std::size_t exponent = text.find_first_of("eE");
  if (exponent == std::string::npos) return text;
  if (exponent + 1 < text.size() && text[exponent + 1] != '-' && text[exponent + 1] != '+')
    text.insert(exponent + 1, "+");
  if (text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string yaml_inline(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kFloat:
      return yaml_float(value);
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kString:
      return yaml_string(value.text);
    case Value::Kind::kList: {
      std::string text = "[";
      for (const Value& item : value.items) text += (text.size() > 1 ? ", " : "") + yaml_inline(item);
      return text + "]";
    }
    case Value::Kind::kMap: {
      std::string text = "{";
      for (const Member& member : value.members) {
        text += (text.size() > 1 ? ", " : "") + yaml_string(member.key) + ": " + yaml_inline(member.value);
      }
      return text + "}";
    }
    default:
      return value.text;
  }
}

// Writes the settings of another framework, one per line, with indented sections; omits values that may be
// secrets.
std::string yaml_block(const Value& map, int indent) {
  std::string text;
  for (const Member& member : map.members) {
    if (member.key.ends_with("access_token")) continue;
    const std::string begin = fmt::format("{:{}}{}:", "", indent, yaml_string(member.key));
    text += member.value.is_map() && !member.value.members.empty()
                ? begin + "\n" + yaml_block(member.value, indent + 2)
                : begin + " " + yaml_inline(member.value) + "\n";
  }
  return text;
}

nlohmann::ordered_json json_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kBool:
      return value.boolean;
    case Value::Kind::kInt:
      return value.integer;
    case Value::Kind::kFloat:
      return value.real;
    case Value::Kind::kString:
      return value.text;
    case Value::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Value& item : value.items) list.push_back(json_of(item));
      return list;
    }
    case Value::Kind::kMap: {
      auto map = nlohmann::ordered_json::object();
      for (const Member& member : value.members) map[member.key] = json_of(member.value);
      return map;
    }
  }
  return nullptr;
}

// Returns the value of a key's field. A list is returned as in the file, because the field stores all items
// as text: the first item of [0.5, a] would no longer be a number. A number in place of a list of numbers
// also stays a number.
Value value_of_field(const KeySpec& key, const Experiment& experiment, const Value* set) {
  Value value = current_value(key, experiment.trainer);
  const auto same_text = [](const Value& a, const Value& b) { return a.text == b.text; };
  if (!set || !value.is_list()) return value;
  if (key.items == ListItems::kNumbers && set->is_scalar() && value.items.size() == 1 &&
      set->text == value.items[0].text)
    return *set;
  return set->is_list() && std::ranges::equal(set->items, value.items, same_text) ? *set : value;
}

// Calls visit(key, value, is_first_of_group) for every key that has a field in TrainerConfig, and then for
// every key without a field that the experiment sets.
template <class Visit>
void for_each_setting(const Experiment& experiment, Visit&& visit) {
  const Framework framework = parse_framework(experiment.framework).value_or(Framework::kNative);
  std::string_view group;
  for (const KeySpec& key : all_keys()) {
    const bool has_field = !std::holds_alternative<std::monostate>(key.field);
    const Value* set = experiment.settings.find(key.name);
    if (!set && !(has_field && key.has_meaning_for(framework))) continue;
    // Required and derived keys have no default, and may be unset with other frameworks. A required key that
    // is null counts as unset.
    const bool unset = experiment.provenance_of(key.name).layer == Layer::kDefault;
    if (unset && (key.is_required || !key.derived_from.empty())) continue;
    if (key.is_required && set && set->is_null()) continue;
    visit(key, has_field ? value_of_field(key, experiment, set) : *set, key.group != group);
    group = key.group;
  }
}

// Returns the source of the value. If the experiment does not set the key and AMD Primus has a different
// default, adds AMD Primus's default.
std::string origin_of(const Experiment& experiment, const KeySpec& key, const Value& value) {
  const Provenance from = experiment.provenance_of(key.name);
  std::string text = from.describe();
  const bool left_out = from.layer < Layer::kOverrides;
  if (left_out && !key.primus_default.empty() && yaml_inline(value) != key.primus_default)
    text += fmt::format("; Primus has {}", key.primus_default);
  return text;
}

// Returns whether the value must be derived when the file is loaded again, so that the file must not contain
// the key. Such values are the steps of the decay, which follow train_iters. train_iters is such a value if
// the length is given in epochs, tokens or minutes. With `load`, unset model settings are such values,
// because they come from the loaded config.json.
bool follows_from_another(const Experiment& experiment, const KeySpec& key) {
  const TrainerConfig& c = experiment.trainer;
  if (experiment.sets(key.name)) return false;
  if (key.name == "lr_decay_iters") return true;
  if (key.name == "train_iters" && (c.train_epochs || c.train_tokens || c.train_minutes)) return true;
  if (experiment.provenance_of(key.name).layer > Layer::kDerived) return false;
  return c.load && key.describes_model();
}

}  // namespace

std::string to_yaml(const Experiment& experiment) {
  std::string text;
  text += fmt::format("work_group: {}\n", yaml_string(experiment.work_group));
  text += fmt::format("user_name: {}\n", yaml_string(experiment.user_name));
  text += fmt::format("exp_name: {}\n", yaml_string(experiment.exp_name));
  text += fmt::format("workspace: {}\n", yaml_string(experiment.workspace));
  if (!experiment.env.empty()) {
    text += "env:\n";
    for (const auto& [name, value] : experiment.env) {
      // Instead of a secret, the file contains a reference to the environment variable with the secret.
      text +=
          fmt::format("  {}: {}\n", name,
                      is_secret(name, value) ? fmt::format("${{{}}}", name) : nlohmann::json(value).dump());
    }
  }
  text += fmt::format("modules:\n  {}:\n    framework: {}\n    overrides:\n",
                      yaml_string(experiment.module_name), experiment.framework);
  if (has_foreign_settings(experiment)) return text + yaml_block(experiment.settings, 6);
  for_each_setting(experiment, [&](const KeySpec& key, const Value& value, bool first) {
    if (first) text += fmt::format("      # {}\n", key.group_title);
    // lr_warmup_fraction determines this key; both keys together would be an error.
    if (key.name == "lr_warmup_iters" && experiment.trainer->lr_warmup_fraction) return;
    if (follows_from_another(experiment, key)) return;
    text += fmt::format("      {}: {}\n", key.name, yaml_inline(value));
  });
  return text;
}

std::string show(const Experiment& experiment, bool origins) {
  std::string text;
  const auto line = [&](std::string_view key, const std::string& value, const std::string& origin) {
    const std::string setting = fmt::format("{}: {}", key, value);
    text += origins ? fmt::format("{:<56}  # {}\n", setting, origin) : setting + "\n";
  };
  const auto top = [&](std::string_view key, const std::string& value) {
    line(key, yaml_string(value), experiment.provenance_of(key).describe());
  };
  top("work_group", experiment.work_group);
  top("user_name", experiment.user_name);
  top("exp_name", experiment.exp_name);
  top("workspace", experiment.workspace);
  top("framework", experiment.framework);
  if (!experiment.module_preset.empty()) top("config", experiment.module_preset);
  if (!experiment.model_preset.empty()) top("model", experiment.model_preset);
  for (const auto& [name, value] : experiment.env) {
    line("env." + name, is_secret(name, value) ? std::string(kRedacted) : nlohmann::json(value).dump(),
         experiment.provenance_of("env." + name).describe());
  }
  for_each_setting(experiment, [&](const KeySpec& key, const Value& value, bool first) {
    const bool ignored = !key.has_meaning_for(*parse_framework(experiment.framework));
    if (first) text += fmt::format("\n# {}{}\n", key.group_title, ignored ? " (ignored)" : "");
    line(key.name, yaml_inline(value), origin_of(experiment, key, value));
  });
  return text;
}

std::string to_json(const Experiment& experiment, bool origins) {
  nlohmann::ordered_json json{{"work_group", experiment.work_group},
                              {"user_name", experiment.user_name},
                              {"exp_name", experiment.exp_name},
                              {"workspace", experiment.workspace},
                              {"output_dir", experiment.output_dir().string()},
                              {"module", experiment.module_name},
                              {"other_modules", experiment.other_modules},
                              {"framework", experiment.framework},
                              {"config", experiment.module_preset},
                              {"model", experiment.model_preset},
                              {"env", nlohmann::ordered_json::object()},
                              {"trainer", nlohmann::ordered_json::object()},
                              {"ignored", experiment.ignored},
                              {"replaced", experiment.replaced},
                              {"warnings", experiment.warnings}};
  for (const auto& [name, value] : experiment.env) json["env"][name] = shown_value(name, value);
  for_each_setting(experiment, [&](const KeySpec& key, const Value& value, bool) {
    json["trainer"][std::string(key.name)] = json_of(value);
    if (origins) json["origins"][std::string(key.name)] = origin_of(experiment, key, value);
  });
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace primus::config
