#include "backends/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/framework.h"

namespace primus::backends {

#define ENTRY(entry) extern const BackendEntry entry;
#include "backends/backends.def"  // generated: primus_entry_list
#undef ENTRY

namespace {

// "megatron, torchtitan or maxtext"
std::string choices() {
  std::vector<std::string_view> names;
  for (const std::string_view name : config::framework_names())
    if (find_backend(name)) names.push_back(name);
  const std::string_view last = names.back();
  names.pop_back();
  return names.empty() ? std::string(last) : fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace

const BackendEntry* find_backend(std::string_view framework) {
  // The entries live in other files: they are ready once main() runs.
#define ENTRY(entry) &entry,
  static const std::array all = {
#include "backends/backends.def"
  };
#undef ENTRY
  const auto found = std::ranges::find(all, framework, &BackendEntry::name);
  return found == all.end() ? nullptr : *found;
}

const BackendEntry& backend_of(std::string_view framework, const std::string& place) {
  if (const BackendEntry* entry = find_backend(framework)) return *entry;
  throw unsupported(fmt::format("framework {} is no other framework", framework), "choose " + choices())
      .at(place);
}

}  // namespace primus::backends
