// Fields of untrusted JSON objects. A missing field, or one of another type, has a default value. Pure
// functions; thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/terminal/terminal.h"

namespace primus::postmortem {

// Returns the text without control characters.
inline std::string text_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>()) : std::string();
}

inline std::int64_t whole_field(const nlohmann::json& object, const char* key, std::int64_t otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
}

inline double number_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// Returns the field 'rank', or -1 if no rank of a job has this number.
inline int rank_field(const nlohmann::json& object) {
  constexpr std::int64_t kMaxRanks = 1 << 20;
  const std::int64_t rank = whole_field(object, "rank", -1);
  return rank >= 0 && rank < kMaxRanks ? static_cast<int>(rank) : -1;
}

}  // namespace primus::postmortem
