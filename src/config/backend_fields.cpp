#include "config/backend_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text/suggest.h"
#include "config/readers.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

KeyType type_named(const Value& name) {
  static constexpr std::pair<std::string_view, KeyType> kTypes[] = {
      {"any", KeyType::kAny},     {"bool", KeyType::kBool},     {"int", KeyType::kInt},
      {"float", KeyType::kFloat}, {"string", KeyType::kString}, {"list", KeyType::kList},
      {"map", KeyType::kMap}};
  for (const auto& [text, type] : kTypes) {
    if (name.text == text) return type;
  }
  throw error_at(name.origin, fmt::format("'{}' is not a type of setting", name.text),
                 "restore the table that came with the program");
}

BackendField read_field(const Member& member) {
  BackendField field;
  field.name = member.key;
  if (!member.value.is_map()) throw error_at(member.origin, "a field is a map", "write {type: ...}");
  for (const Member& part : member.value.members) {
    if (part.key == "type") {
      field.type = type_named(part.value);
    } else if (part.key == "default") {
      field.fallback = part.value;
    } else if (part.key == "choices") {
      for (const Value& choice : part.value.items) field.choices.push_back(choice.text);
    } else if (part.key == "flag") {
      field.flag = part.value.text;
    } else if (part.key == "on") {
      field.on = part.value.text;
    } else if (part.key == "off") {
      field.off = part.value.text;
    } else {
      throw error_at(part.origin, fmt::format("a field has no '{}'", part.key),
                     "it has type, default, choices, flag, on and off");
    }
  }
  return field;
}

bool has_type(KeyType type, const Value& value) {
  using Kind = Value::Kind;
  switch (type) {
    case KeyType::kAny:
      return true;
    case KeyType::kBool:
      return value.kind == Kind::kBool ||
             (value.kind == Kind::kInt && (value.integer == 0 || value.integer == 1));
    case KeyType::kInt:
      return value.kind == Kind::kInt ||
             (value.kind == Kind::kFloat &&
              value.real == static_cast<double>(static_cast<std::int64_t>(value.real)));
    case KeyType::kFloat:
      return value.kind == Kind::kInt || value.kind == Kind::kFloat;
    case KeyType::kMap:
      return value.is_map();
    case KeyType::kList:
    case KeyType::kStrings:
      return value.is_list() || value.kind == Kind::kString || value.kind == Kind::kInt ||
             value.kind == Kind::kFloat;
    case KeyType::kString:
      return value.is_scalar();
  }
  return true;
}

}  // namespace

BackendFields BackendFields::load(std::string_view framework, std::span<const fs::path> preset_dirs) {
  for (const fs::path& dir : preset_dirs) {
    const fs::path folder = dir / "backends" / framework;
    std::error_code error;
    if (!fs::is_regular_file(folder / "fields.yaml", error)) continue;
    BackendFields result;
    result.framework_ = framework;
    result.folder_ = folder;
    const Value document = read_document(folder / "fields.yaml");
    const Value* fields = document.find("fields");
    if (!fields || !fields->is_map()) {
      throw invalid(fmt::format("'{}' lists no fields", (folder / "fields.yaml").string()),
                    "generate it again with scripts/backend-tables.py");
    }
    for (const Member& member : fields->members) result.fields_.emplace(member.key, read_field(member));
    result.keys_ = read_document(folder / "keys.yaml");
    return result;
  }
  throw invalid(fmt::format("the preset folders have no table backends/{}/fields.yaml", framework),
                "restore the presets that came with the program, or set PRIMUS_PRESETS to their folder");
}

const BackendField* BackendFields::find(std::string_view name) const {
  const auto found = fields_.find(name);
  return found == fields_.end() ? nullptr : &found->second;
}

bool BackendFields::is_section(std::string_view prefix) const {
  const std::string begin = std::string(prefix) + ".";
  const auto next = fields_.lower_bound(begin);
  return next != fields_.end() && next->first.starts_with(begin);
}

bool BackendFields::accepts_own_keys() const {
  const Value* own = keys_.find("own_keys");
  return own && own->boolean;
}

const Value& BackendFields::keys(std::string_view section) const {
  static const Value nothing = [] {
    Value value;
    value.kind = Value::Kind::kMap;
    return value;
  }();
  const Value* found = keys_.find(section);
  return found && found->is_map() ? *found : nothing;
}

void BackendFields::check(const BackendField& field, const Value& value) {
  if (value.is_null()) return;
  if (!has_type(field.type, value)) {
    throw error_at(value.origin,
                   fmt::format("{} expects {}, not {}", field.name, expected(field.type), value.show()),
                   "correct the value", value.width());
  }
  if (field.choices.empty() || !value.is_scalar()) return;
  if (std::find(field.choices.begin(), field.choices.end(), value.text) != field.choices.end()) return;
  const std::vector<std::string_view> choices(field.choices.begin(), field.choices.end());
  const std::string near = did_you_mean(value.text, choices);
  throw error_at(
      value.origin,
      fmt::format("{} is {}; it must be one of {}", field.name, value.show(), fmt::join(field.choices, ", ")),
      near.empty() ? "choose one of them" : near, value.width());
}

}  // namespace primus::config
