// Reads typed values of one JSON object of a config.json; errors name the key. A key that is absent or null
// has its fallback.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus {

// An error about one key of a config.json, or of rope_scaling in it. Whoever made the file from settings
// finds the setting by it (setting_names.h).
class ConfigKeyError : public Error {
 public:
  ConfigKeyError(ErrorKind kind, std::string key, std::string what, std::string hint = {})
      : Error(kind, std::move(what), std::move(hint)), key_(std::move(key)) {}
  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

class ConfigReader {
 public:
  // The largest size that a dimension may have.
  static constexpr std::int64_t kMaxWidth = std::int64_t{1} << 26;

  // `where` is the location in errors; empty: whoever catches them knows it. The object must outlive the
  // reader.
  explicit ConfigReader(const nlohmann::json& object, std::string where = {})
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;  // required
  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  double number_or(const char* key, double fallback) const;
  double positive_or(const char* key, double fallback) const;
  std::optional<double> optional_number(const char* key) const;
  bool flag_or(const char* key, bool fallback) const;
  std::string text_or(const char* key, const std::string& fallback) const;
  // A list of whole numbers; empty where there is none.
  std::vector<std::int64_t> integers(const char* key, std::int64_t low, std::int64_t high) const;
  // A single id, or a list of them.
  std::vector<std::int64_t> ids(const char* key) const;
  // "'key' what". Whatever the file holds can be part of `what`: it is made printable.
  // Behind "must be ..." comes what is there instead.
  ConfigKeyError bad(const char* key, const std::string& what) const;
  // "'key'what", of what is understood and not available here.
  ConfigKeyError not_supported(const char* key, const std::string& what, std::string hint) const;

 private:
  ConfigKeyError error(ErrorKind kind, const char* key, const std::string& what, std::string hint) const;
  std::int64_t integer_of(const nlohmann::json& value, const char* key, std::int64_t low,
                          std::int64_t high) const;
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace primus
