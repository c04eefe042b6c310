#include "base/system/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/system/control_groups.h"

namespace primus {
namespace {

std::optional<std::int64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  // Returns nullopt for the text "max", which means no limit. Version 1 writes a huge number instead.
  if (stream >> value && value >= 0) return value;
  return std::nullopt;
}

// Returns the value of `key` in a file of lines "key value".
std::optional<std::int64_t> line_in(const std::string& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t blank = line.find(' ');
    if (line.substr(0, blank) != key || blank == std::string::npos) continue;
    try {
      return std::stoll(line.substr(blank));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  constexpr std::int64_t kKiB = 1024;
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory{.total = line_in(meminfo, "MemTotal:").value_or(0) * kKiB,
                    .available = line_in(meminfo, "MemAvailable:").value_or(0) * kKiB,
                    .limited_by = {}};
  for (const ControlGroup& group : control_groups("memory", root)) {
    const auto file = [&](const char* v2, const char* v1) {
      return group.folder + "/" + (group.v2 ? v2 : v1);
    };
    const auto limit = number_in(file("memory.max", "memory.limit_in_bytes"));
    const auto used = number_in(file("memory.current", "memory.usage_in_bytes"));
    if (!limit || !used) continue;
    // Inactive file pages are reclaimed before the kernel kills a process.
    const auto cached =
        line_in(group.folder + "/memory.stat", group.v2 ? "inactive_file" : "total_inactive_file")
            .value_or(0);
    const std::int64_t room = std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cached));
    if (memory.available == 0 || room < memory.available) {
      memory.available = room;
      memory.limited_by = group.folder;
    }
    if (memory.total == 0 || *limit < memory.total) memory.total = *limit;
  }
  return memory;
}

std::int64_t resident_bytes() {
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace primus
