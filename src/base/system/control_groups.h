// The control groups that limit this process (containers, Slurm and Kubernetes set them). See the kernel's
// admin-guide/cgroup-v2 and cgroup-v1. Pure but for the files it reads; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct ControlGroup {
  std::string folder;  // where its limits stand: "/sys/fs/cgroup/slice/job"
  bool v2 = false;     // the unified hierarchy, with its own names of files
};

// The groups of this process that `controller` ("cpu", "memory") may limit, each before the one above it. A
// limit counts wherever it stands. `root`: where /proc and /sys are, for tests. A group may be one that this
// process cannot see: then its folder is not there.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

}  // namespace primus
