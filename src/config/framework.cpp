#include "config/framework.h"

#include <algorithm>
#include <vector>

namespace primus::config {

#define ENTRY(entry) extern const FrameworkEntry entry;
#include "config/frameworks.def"  // generated: primus_entry_list
#undef ENTRY

namespace {

// The entries live in other files: they are ready once main() runs.
const std::vector<FrameworkEntry>& frameworks() {
  static const std::vector<FrameworkEntry> all = [] {
#define ENTRY(entry) entry,
    std::vector<FrameworkEntry> entries = {
#include "config/frameworks.def"
    };
#undef ENTRY
    std::ranges::sort(entries, {}, &FrameworkEntry::place);
    return entries;
  }();
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

}  // namespace primus::config
