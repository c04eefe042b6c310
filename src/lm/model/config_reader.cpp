#include "lm/model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/terminal/terminal.h"

namespace primus {

using nlohmann::json;

const json* ConfigReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const json* value = find(key);
  if (!value) throw bad(key, "is missing");
  return integer_of(*value, key, low, high);
}

std::int64_t ConfigReader::integer_or(const char* key, std::int64_t fallback, std::int64_t low,
                                      std::int64_t high) const {
  const json* value = find(key);
  return value ? integer_of(*value, key, low, high) : fallback;
}

double ConfigReader::number_or(const char* key, double fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) throw bad(key, "must be a number");
  return value->get<double>();
}

double ConfigReader::positive_or(const char* key, double fallback) const {
  const double value = number_or(key, fallback);
  if (value <= 0) throw bad(key, "must be above 0");
  return value;
}

std::optional<double> ConfigReader::optional_number(const char* key) const {
  return find(key) ? std::optional(number_or(key, 0)) : std::nullopt;
}

bool ConfigReader::flag_or(const char* key, bool fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) throw bad(key, "must be true or false");
  return value->get<bool>();
}

std::string ConfigReader::text_or(const char* key, const std::string& fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) throw bad(key, "must be a string");
  return value->get<std::string>();
}

std::vector<std::int64_t> ConfigReader::integers(const char* key, std::int64_t low, std::int64_t high) const {
  std::vector<std::int64_t> list;
  const json* value = find(key);
  if (!value) return list;
  if (!value->is_array()) throw bad(key, "must be a list");
  for (const json& item : *value) list.push_back(integer_of(item, key, low, high));
  return list;
}

std::vector<std::int64_t> ConfigReader::ids(const char* key) const {
  constexpr std::int64_t kMaxIds = std::int64_t{1} << 31;
  const json* value = find(key);
  if (!value || value->is_array()) return integers(key, -1, kMaxIds);
  return {integer_of(*value, key, -1, kMaxIds)};
}

ConfigKeyError ConfigReader::bad(const char* key, const std::string& what) const {
  constexpr std::size_t kShown = 60;
  const json* const value = what.starts_with("must be") ? find(key) : nullptr;
  const std::string found =
      value && value->is_primitive()
          ? ", not " + value->dump(-1, ' ', false, json::error_handler_t::replace).substr(0, kShown)
          : std::string();
  return error(ErrorKind::kInvalid, key, " " + what + found, {});
}

ConfigKeyError ConfigReader::not_supported(const char* key, const std::string& what, std::string hint) const {
  return error(ErrorKind::kUnsupported, key, what, std::move(hint));
}

ConfigKeyError ConfigReader::error(ErrorKind kind, const char* key, const std::string& what,
                                   std::string hint) const {
  ConfigKeyError error(kind, key, printable("'" + std::string(key) + "'" + what), std::move(hint));
  if (!where_.empty()) error.at(where_);
  return error;
}

std::int64_t ConfigReader::integer_of(const json& value, const char* key, std::int64_t low,
                                      std::int64_t high) const {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high));
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    throw bad(key, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value.get<std::int64_t>();
}

}  // namespace primus
