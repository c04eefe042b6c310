#include "config/foreign.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text/suggest.h"
#include "config/framework.h"

namespace primus::config {

const Value* find_path(const Value& settings, std::string_view path) {
  if (const Value* whole = settings.find(path)) return whole;
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const Value* section = settings.find(path.substr(0, dot));
  return section && section->is_map() ? find_path(*section, path.substr(dot + 1)) : nullptr;
}

bool has_foreign_settings(const Experiment& experiment) {
  return std::ranges::any_of(experiment.settings.members, [](const Member& member) {
    const KeySpec* key = find_key(member.key);
    return !key || (member.value.is_map() && key->type == KeyType::kString);
  });
}

void set_path(Value& settings, std::string_view path, Value value) {
  settings.kind = Value::Kind::kMap;
  const std::size_t dot = path.find('.');
  const std::string head(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    Origin origin = value.origin;
    settings.set(head, std::move(origin), std::move(value));
    return;
  }
  const Value* before = settings.find(head);
  Value section = before && before->is_map() ? *before : Value{};
  set_path(section, path.substr(dot + 1), std::move(value));
  settings.set(head, {}, std::move(section));
}

const Value* find_extra(const BackendFields& fields, std::string_view path) {
  for (const Member& extra : fields.keys("extra").members) {
    const bool star = extra.key.ends_with('*');
    if (star ? path.starts_with(extra.key.substr(0, extra.key.size() - 1)) : path == extra.key)
      return &extra.value;
  }
  return nullptr;
}

bool knows(const BackendFields& fields, std::string_view path) {
  return fields.find(path) || fields.is_section(path) || find_extra(fields, path) ||
         find_extra(fields, std::string(path) + ".");
}

void check_settings(const BackendFields& fields, const Value& settings, Problems& problems) {
  std::vector<std::string_view> names;
  for (const auto& [name, field] : fields.all()) names.push_back(name);
  for_each_setting(fields, settings, [&](const std::string& path, const Member& member) {
    if (const BackendField* field = fields.find(path)) {
      problems.collect([&] { BackendFields::check(*field, member.value); });
      return;
    }
    if (find_extra(fields, path) || !problems.are_kept()) return;
    if (fields.accepts_own_keys() && find_key(path.substr(0, path.find('.')))) return;
    if (member.value.is_null() && (fields.is_section(path) || find_extra(fields, path + "."))) return;
    const std::string near = did_you_mean(path, names);
    problems.add(
        error_at(member.origin,
                 fmt::format("unknown key '{}' of {}", path.substr(0, 80), fields.keys().find("title")->text),
                 near.empty() ? "'primus config reference' lists the keys of the native engine" : near,
                 member.key.size()));
  });
}

Translation to_own_keys(const BackendFields& fields, const Value& settings, std::int64_t ranks,
                        Problems& problems) {
  return find_framework(fields.framework())->translator(fields, settings, ranks, problems)->run();
}

}  // namespace primus::config
