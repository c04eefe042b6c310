// The next step after a mistake in a key: what it is called here, and which command explains it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/keys.h"

namespace primus::config {

// A name that other programs have for what a key of ours says ("learning_rate": "lr").
struct Synonym {
  std::string_view name;
  std::string_view key;          // of ours; a trainer key or a top-level one
  std::string_view remark = {};  // where the two do not mean quite the same
};
std::span<const Synonym> synonyms();

// The hint for a key that does not exist. Never empty.
std::string hint_for_unknown_key(std::string_view name);

// "'primus config reference lr' explains it".
std::string hint_about(std::string_view key);

// The hint for a value that the native engine does not have. Never empty.
std::string hint_for_unsupported(const KeySpec& key, std::string_view value);

}  // namespace primus::config
