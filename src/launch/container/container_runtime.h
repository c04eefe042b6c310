// The programs that run containers: docker, podman, apptainer and singularity.
#pragma once

#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/plan.h"

namespace primus::launch {

// The label of containers that Primus starts.
inline constexpr const char* kLabel = "io.primus.job";
// The label with the process id of the container's launcher. It also contains the launcher's start time in
// kernel ticks, because process ids are reused.
inline constexpr const char* kLauncherLabel = "io.primus.launcher";

inline bool is_apptainer(const std::string& runtime) {
  return runtime == "apptainer" || runtime == "singularity";
}

// Returns "docker", "podman", "apptainer" or "singularity": the requested runtime, or the first that works.
// `notes`: runtimes that were skipped. Throws Error(kDependency) if none works.
std::string find_runtime(const std::string& wanted, const Surroundings& surroundings,
                         std::vector<std::string>& notes);

// Removes the containers with `label` whose launchers no longer run. Containers of running jobs stay.
Step removal(const std::string& runtime, const std::string& label);

}  // namespace primus::launch
