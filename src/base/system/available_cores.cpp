#include "base/system/available_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>

#include "base/system/control_groups.h"

namespace primus {
namespace {

int affinity_cores() {
  // The mask must be at least as large as that of the Linux kernel. No call returns the size of the Linux
  // kernel's mask, so this function tries larger and larger masks.
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known && count > 0) return count;
  }
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

// Returns the number of cores that cpu.max allows. The file has the microseconds of CPU time and of the
// period, such as "200000 100000", or "max 100000" if there is no limit.
std::optional<double> bandwidth_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

std::optional<double> bandwidth_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// Returns the lowest limit of the control groups of this process and their parent groups.
std::optional<double> cgroup_cores() {
  std::optional<double> tightest;
  const auto consider = [&](std::optional<double> limit) {
    if (limit && (!tightest || *limit < *tightest)) tightest = limit;
  };
  for (const ControlGroup& group : control_groups("cpu"))
    consider(group.v2 ? bandwidth_v2(group.folder) : bandwidth_v1(group.folder));
  return tightest;
}

}  // namespace

int available_cores() {
  const int cores = affinity_cores();
  const auto limit = cgroup_cores();
  if (!limit) return cores;
  return std::clamp(static_cast<int>(std::ceil(*limit)), 1, cores);
}

}  // namespace primus
