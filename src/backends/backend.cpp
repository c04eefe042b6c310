#include "backends/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/framework.h"

namespace primus::backends {

#include "backends/backends.def"  // generated; defines kAllBackendEntry

namespace {

// Returns the backends' names: "megatron, torchtitan or maxtext".
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
  const auto found = std::ranges::find(kAllBackendEntry, framework, &BackendEntry::name);
  return found == std::end(kAllBackendEntry) ? nullptr : *found;
}

const BackendEntry& backend_of(std::string_view framework, const std::string& place) {
  if (const BackendEntry* entry = find_backend(framework)) return *entry;
  throw unsupported(fmt::format("framework {} does not name another framework", framework),
                    "choose " + choices())
      .at(place);
}

}  // namespace primus::backends
