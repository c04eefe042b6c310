// Reads typed values from one JSON object of a config.json. Errors name the key. A key that is absent or null
// gets its fallback value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus {

// An error about one key of a config.json or of its rope_scaling. If the config.json was made from an
// experiment, setting_names.h maps the key to the setting.
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
  // The largest allowed size of a dimension.
  static constexpr std::int64_t kMaxWidth = std::int64_t{1} << 26;

  // Reads `object`, which must outlive the reader. `where`: location for error messages; empty if the caller
  // adds the location.
  explicit ConfigReader(const nlohmann::json& object, std::string where = {})
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(const char* key) const;
  // Reads a required integer.
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  double number_or(const char* key, double fallback) const;
  double positive_or(const char* key, double fallback) const;
  std::optional<double> optional_number(const char* key) const;
  bool flag_or(const char* key, bool fallback) const;
  std::string text_or(const char* key, const std::string& fallback) const;
  // Returns a list of integers; empty if the key is absent.
  std::vector<std::int64_t> integers(const char* key, std::int64_t low, std::int64_t high) const;
  // Reads a single id or a list of ids.
  std::vector<std::int64_t> ids(const char* key) const;
  // Returns the error "'key' what". `what` may contain text from the file; unprintable characters are
  // escaped. If `what` begins with "must be", the value found is appended.
  ConfigKeyError bad(const char* key, const std::string& what) const;
  // Returns the error "'key'what" for a valid option that Primus does not support.
  ConfigKeyError not_supported(const char* key, const std::string& what, std::string hint) const;

 private:
  ConfigKeyError error(ErrorKind kind, const char* key, const std::string& what, std::string hint) const;
  std::int64_t integer_of(const nlohmann::json& value, const char* key, std::int64_t low,
                          std::int64_t high) const;
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace primus
