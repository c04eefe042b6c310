// The engines that an experiment can name as its `framework`: the native one and other frameworks. Each is a
// file in config/frameworks, which ends with its FrameworkEntry; the build makes the list. Free functions
// without state.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "config/keys.h"
#include "config/translator.h"

namespace primus::config {

struct FrameworkEntry {
  std::string_view name;   // the value of the key `framework`
  std::string_view title;  // what people call it
  int place = 0;           // in lists for people
  // Which of our keys have a meaning for it. kOther: experiments are written with its own settings, or with
  // keys of the native engine.
  Framework keys = Framework::kOther;
  // Translates its own settings into our keys; null: it has none.
  std::unique_ptr<Translator> (*translator)(const BackendFields& fields, const Value& settings,
                                            std::int64_t ranks, Problems& problems) = nullptr;
};

template <class T>
std::unique_ptr<Translator> make_translator(const BackendFields& fields, const Value& settings,
                                            std::int64_t ranks, Problems& problems) {
  return std::make_unique<T>(fields, settings, ranks, problems);
}

// Null where there is none of that name.
const FrameworkEntry* find_framework(std::string_view name);
// Whether experiments for this framework are written with its settings instead of our keys.
bool has_own_settings(std::string_view framework);
// Ordered by place.
std::span<const std::string_view> framework_names();

}  // namespace primus::config
