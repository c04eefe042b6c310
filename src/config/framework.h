// The engines that an experiment can name as its `framework`: the native engine and other frameworks. Each
// engine has a file in config/frameworks. The file ends with the engine's FrameworkEntry. The build collects
// these entries in a list. Stateless.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "config/keys.h"
#include "config/translator.h"

namespace primus::config {

struct FrameworkEntry {
  std::string_view name;   // the value of the key `framework`
  std::string_view title;  // display name
  int place = 0;           // position in lists for users
  // The keys that have a meaning for this framework. kOther: experiments use either the framework's own
  // settings or the native engine's keys.
  Framework keys = Framework::kOther;
  // Makes a translator from the framework's own settings to our keys; null if the framework has no own
  // settings.
  std::unique_ptr<Translator> (*translator)(const BackendFields& fields, const Value& settings,
                                            std::int64_t ranks, Problems& problems) = nullptr;
  // Primus reads the framework's experiments, but does not start the framework: the native engine runs them.
  bool runs_natively = false;
};

template <class T>
std::unique_ptr<Translator> make_translator(const BackendFields& fields, const Value& settings,
                                            std::int64_t ranks, Problems& problems) {
  return std::make_unique<T>(fields, settings, ranks, problems);
}

// Returns null if no framework has that name.
const FrameworkEntry* find_framework(std::string_view name);
// Returns whether experiments for this framework are written with its own settings instead of our keys.
bool has_own_settings(std::string_view framework);
// Returns the values of the key `framework`, sorted by FrameworkEntry::place.
std::span<const std::string_view> framework_names();
// Returns the names of the frameworks that Primus can start, and of the native engine, in the same order.
std::span<const std::string_view> engine_names();

}  // namespace primus::config
