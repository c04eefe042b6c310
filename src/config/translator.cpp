#include "config/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace primus::config {
namespace {

Value number(double value, const Origin& origin) {
  // Integers, such as steps and sizes, are written without a fraction.
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return plain_scalar(fmt::format("{}", static_cast<std::int64_t>(value)), origin);
  return plain_scalar(fmt::format("{}", value), origin);
}

bool is_one_of(const Value& value, const Value& list) {
  return std::ranges::any_of(list.items, [&](const Value& item) {
    const bool nothing = value.is_null() || (value.is_list() && value.items.empty());
    if (item.is_null() || nothing) return item.is_null() && nothing;
    const bool numbers = item.kind != Value::Kind::kString && value.kind != Value::Kind::kString &&
                         item.kind != Value::Kind::kBool && value.kind != Value::Kind::kBool;
    return numbers ? item.real == value.real : item.text == value.text;
  });
}

}  // namespace

Value text_value(std::string_view word, const Origin& origin) {
  Value value;
  value.kind = Value::Kind::kString;
  value.quoted = true;
  value.text = word;
  value.origin = origin;
  return value;
}

Translator::Translator(const BackendFields& fields, const Value& settings, std::int64_t ranks,
                       Problems& problems)
    : fields_(fields),
      settings_(settings),
      ranks_(ranks),
      problems_(problems),
      title_(fields.keys().find("title")->text) {}

Translation Translator::run() {
  result_.settings.kind = result_.recipe.kind = Value::Kind::kMap;
  if (!accepts()) return std::move(result_);
  for (const Member& row : fields_.keys("settings").members) apply(row);
  for_each_setting(fields_, settings_,
                   [&](const std::string& path, const Member& member) { left_over(path, member); });
  model();
  translate();
  for (const Value& warning : list("differences")) result_.warnings.push_back(warning.text);
  return std::move(result_);
}

const std::vector<Value>& Translator::list(std::string_view section) const {
  static const std::vector<Value> nothing;
  const Value* found = fields_.keys().find(section);
  return found ? found->items : nothing;
}

Value Translator::get(std::string_view path) const {
  if (const Value* value = find_path(settings_, path); value && !value->is_null()) return *value;
  const BackendField* field = fields_.find(path);
  Value value = field ? field->fallback : Value{};
  value.origin = {};
  return value;
}

bool Translator::is_set(std::string_view path) const {
  const Value* value = find_path(settings_, path);
  return value && !value->is_null();
}

double Translator::model_parallel(std::initializer_list<std::string_view> paths) const {
  double product = 1;
  for (const std::string_view path : paths) product *= std::max(real(path), 1.0);
  return product;
}

void Translator::put(std::string_view key, Value value, std::string_view from) {
  result_.names[std::string(key)] = from;
  Origin origin = value.origin;
  result_.settings.set(std::string(key), std::move(origin), std::move(value));
}
void Translator::put(std::string_view key, double value, std::string_view from) {
  put(key, number(value, get(from).origin), from);
}
void Translator::put_text(std::string_view key, std::string_view value, std::string_view from) {
  put(key, text_value(value, get(from).origin), from);
}

void Translator::recommend(std::string_view key, Value value) {
  Origin origin = value.origin;
  result_.recipe.set(std::string(key), std::move(origin), std::move(value));
}

void Translator::refuse(std::string_view path, const std::string& why, const std::string& hint) {
  const Value value = get(path);
  refuse_at(value, fmt::format("{} is {}: {}", path, value.show(), why), hint);
}

void Translator::refuse_at(const Value& value, const std::string& what, const std::string& hint) {
  Error error = unsupported(what, hint);
  if (value.origin.source) error.at(value.origin.location(), value.origin.snippet(value.width()));
  problems_.add(std::move(error));
}

// Applies one row of the section `settings`.
void Translator::apply(const Member& row) {
  const Value value = get(row.key);
  if (const Value* only = row.value.find("only"); only && !is_one_of(value, *only)) {
    const Value* because = row.value.find("because");
    refuse(row.key, because ? because->text : "the native engine has no counterpart",
           fmt::format("leave {} out, or keep framework: {}", row.key, fields_.framework()));
    return;
  }
  const Value* key = row.value.find("key");
  if (!key || value.is_null()) return;
  Value mine = value;
  if (const Value* values = row.value.find("values")) {
    if (const Value* found = values->find(value.text)) {
      mine = *found;
      mine.origin = value.origin;
    }
  }
  put(key->text, std::move(mine), row.key);
}

// Handles a setting that no row translates.
void Translator::left_over(const std::string& path, const Member& member) {
  const Value* row = fields_.keys("settings").find(path);
  if (row) {
    if (const Value* none = row->find("none"); none && !member.value.is_null())
      result_.dropped[none->text].push_back(path);
    return;
  }
  if (fields_.accepts_own_keys() && find_key(path.substr(0, path.find('.')))) return;  // translated by code
  if (const Value* extra = find_extra(fields_, path)) {
    if (extra->find("rule")) return;
    const Value* key = extra->find("key");
    const Value* because = extra->find("because");
    if (key && !member.value.is_null()) {
      put(key->text, member.value, path);
    } else if (!key) {
      result_.dropped[because ? because->text : "AMD Primus adds it"].push_back(path);
    }
    return;
  }
  for (const Member& reason : fields_.keys("nothing").members) {
    for (const Value& item : reason.value.items) {
      const bool star = item.text.ends_with('*');
      if (star ? path.starts_with(item.text.substr(0, item.text.size() - 1)) : path == item.text) {
        result_.dropped[reason.key].push_back(path);
        return;
      }
    }
  }
  // Ignores a setting whose value is the framework's default.
  const BackendField* field = fields_.find(path);
  if (!field || member.value.is_null() ||
      (field->fallback.text == member.value.text && member.value.is_scalar()))
    return;
  result_.dropped["the native engine has no counterpart"].push_back(path);
}

// Finds our preset for the model that the settings name.
void Translator::model() {
  for (const Member& preset : fields_.keys("models").members) {
    const bool same = std::ranges::all_of(
        preset.value.members, [&](const Member& part) { return get(part.key).text == part.value.text; });
    if (!same) continue;
    result_.model_preset = preset.key;
    result_.model_origin = get(preset.value.members.front().key).origin;
    return;
  }
  if (describes_model()) return;
  refuse(model_setting(), fmt::format("Primus has no preset for this model of {}", title_),
         "presets/models lists the models of the native engine");
}

}  // namespace primus::config
