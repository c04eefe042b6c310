#include "backends/key_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/keys.h"
#include "config/trainer_config.h"

namespace primus::backends {

using config::Framework;
using config::Value;

namespace {

constexpr std::string_view kOwn = "only the native engine has it";

bool is_own(const config::KeySpec& key) {
  return key.frameworks == static_cast<std::uint8_t>(Framework::kNative);
}

}  // namespace

bool says(const Value& value, std::string_view word) {
  if (value.is_null()) return word == "null";
  if (value.is_list() || value.is_map())
    return value.items.empty() && value.members.empty() && word == "null";
  const Value other = config::plain_scalar(word, {});
  using Kind = Value::Kind;
  const auto is_number = [](const Value& x) { return x.kind == Kind::kInt || x.kind == Kind::kFloat; };
  if (is_number(value) && is_number(other)) return value.real == other.real;
  if (value.kind == Kind::kInt && other.kind == Kind::kBool) return value.integer == (other.boolean ? 1 : 0);
  return value.text == word;
}

Error unsupported_there(const config::Experiment& experiment, std::string_view key, const std::string& what,
                        const std::string& hint) {
  const Error at_place = experiment.error_for(key, what, hint);
  return unsupported(what, hint).at(at_place.location(), at_place.snippet());
}

KeyRules::KeyRules(const config::Experiment& experiment, const config::BackendFields& fields)
    : experiment_(experiment), fields_(fields) {
  const auto names = [&](std::string_view section) {
    std::set<std::string, std::less<>> result;
    if (const Value* list = fields.keys().find(section)) {
      for (const Value& item : list->items) result.insert(item.text);
    }
    return result;
  };
  together_ = names("together");
  own_defaults_ = names("own_defaults");
  for (const config::Member& reason : fields.keys("nothing").members) {
    for (const Value& item : reason.value.items) {
      if (item.text.ends_with('*')) {
        prefixes_.emplace_back(item.text.substr(0, item.text.size() - 1), reason.key);
      } else {
        reasons_[item.text] = reason.key;
      }
    }
  }
}

std::string KeyRules::renamed(std::string_view key) const {
  const Value* name = fields_.keys("rename").find(key);
  return name ? name->text : std::string(key);
}

Value KeyRules::value_there(std::string_view key, const Value& value) const {
  const Value* values = fields_.keys("values").find(key);
  if (!values || !value.is_scalar()) return value;
  const Value* found = values->find(value.text);
  if (!found) return value;
  Value result = *found;
  result.origin = value.origin;
  return result;
}

std::string_view KeyRules::reason_for(const config::KeySpec& key) const {
  if (is_own(key)) return kOwn;
  if (const auto found = reasons_.find(key.name); found != reasons_.end()) return found->second;
  for (const auto& [prefix, reason] : prefixes_) {
    if (key.name.starts_with(prefix)) return reason;
  }
  return {};
}

void KeyRules::check_missing(const config::KeySpec& key, const Value& value) {
  const config::Layer layer = experiment_.provenance_of(key.name).layer;
  const bool set = layer > config::Layer::kDerived;
  const std::string title = fields_.keys().find("title")->text;
  if (const Value* rule = fields_.keys("refused").find(key.name)) {
    const Value* only = rule->find("only");
    const bool fine = only && std::ranges::any_of(only->items, [&](const Value& word) {
                        return word.is_null() ? says(value, "null") : says(value, word.text);
                      });
    const Value* because = rule->find("because");
    const Value* enabled = value.is_map() ? value.find("enabled") : nullptr;
    if (fine || !set || (enabled && says(*enabled, "false"))) return;
    // The hint suggests removing the key only if this helps. Removing does not help if a preset sets the key.
    // Removing `stage` would turn fine-tuning into pre-training.
    const bool may_go = layer >= config::Layer::kOverrides && key.name != "stage";
    throw unsupported_there(experiment_, key.name,
                            fmt::format("{} cannot be {} with {}: {}", key.name, value.show(), title,
                                        because ? because->text : "it has no counterpart"),
                            may_go ? fmt::format("leave {} out, or choose framework: native", key.name)
                                   : "choose framework: native");
  }
  // For keys that change the model or training, the key table lists the values without effect. For keys that
  // exist only in this program, the default value has no effect.
  const auto& neutral = key.native_values;
  const bool changes =
      std::holds_alternative<std::monostate>(key.field) && !neutral.empty() && !value.is_null() &&
      std::ranges::none_of(neutral, [&](std::string_view word) { return says(value, word); });
  const config::TrainerConfig& trainer = experiment_.trainer;
  const bool own_changes = is_own(key) && !key.is_no_part_of_training && set &&
                           config::has_effect(key, trainer) && !config::same_value(key, trainer, {});
  const std::string_view reason = reason_for(key);
  if (changes || own_changes) {
    throw unsupported_there(experiment_, key.name,
                            fmt::format("{} cannot be {} with {}: {}", key.name, value.show(), title,
                                        reason.empty() ? "it has no counterpart" : reason),
                            fmt::format("leave {} out", key.name));
  }
  if (!set || value.is_null()) return;
  dropped_[reason.empty() ? "no counterpart" : std::string(reason)].emplace_back(key.name);
}

}  // namespace primus::backends
