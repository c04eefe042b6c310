#include "config/framework.h"

#include <algorithm>
#include <vector>

#include "base/entries.h"

namespace primus::config {

#include "config/frameworks.def"  // generated; defines kAllFrameworkEntry

namespace {

const std::vector<FrameworkEntry>& frameworks() {
  static const auto all = copies_of(sorted_entries(kAllFrameworkEntry, &FrameworkEntry::place));
  return all;
}

}  // namespace

const FrameworkEntry* find_framework(std::string_view name) {
  const auto found = std::ranges::find(frameworks(), name, &FrameworkEntry::name);
  return found == frameworks().end() ? nullptr : &*found;
}

bool has_own_settings(std::string_view framework) {
  const FrameworkEntry* entry = find_framework(framework);
  return entry && entry->translator;
}

std::span<const std::string_view> framework_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const FrameworkEntry& entry : frameworks()) all.push_back(entry.name);
    return all;
  }();
  return names;
}

std::span<const std::string_view> engine_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const FrameworkEntry& entry : frameworks())
      if (!entry.runs_natively) all.push_back(entry.name);
    return all;
  }();
  return names;
}

}  // namespace primus::config
