// The control groups (cgroups) that limit this process, set by containers, Slurm or Kubernetes. See the
// kernel's admin-guide/cgroup-v2 and cgroup-v1. Thread-safe, without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct ControlGroup {
  std::string folder;  // contains the limits: "/sys/fs/cgroup/slice/job"
  bool v2 = false;     // the unified hierarchy, which has other file names
};

// Returns the control groups of this process in which `controller` ("cpu", "memory") may set a limit. A group
// precedes its parent. `root`: the folder of /proc and /sys, for tests. The folder of a group that is
// invisible to this process does not exist.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

}  // namespace primus
