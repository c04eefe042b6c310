// Hints for a mistaken key or value: the key's name in Primus, and the command that explains the key.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/keys.h"

namespace primus::config {

// Another program's name for one of our keys ("learning_rate": "lr").
struct Synonym {
  std::string_view name;
  std::string_view key;          // our trainer key or top-level key
  std::string_view remark = {};  // how the meanings of both keys differ; may be empty
};
std::span<const Synonym> synonyms();

// Returns the hint for an unknown key. Never empty.
std::string hint_for_unknown_key(std::string_view name);

// Returns a hint; for the key lr, "'primus config reference lr' explains it".
std::string hint_about(std::string_view key);

// Returns the hint for a value that the native engine does not support. Never empty.
std::string hint_for_unsupported(const KeySpec& key, std::string_view value);

}  // namespace primus::config
