// The programs that run containers: docker, podman, apptainer and singularity.
#pragma once

#include <string>
#include <vector>

#include "launch/direct.h"
#include "launch/plan.h"

namespace primus::launch {

// The label of Primus's containers.
inline constexpr const char* kLabel = "io.primus.job";
// The process that started a container, and when that began, in the kernel's ticks: numbers of processes
// return.
inline constexpr const char* kLauncherLabel = "io.primus.launcher";

inline bool is_apptainer(const std::string& runtime) {
  return runtime == "apptainer" || runtime == "singularity";
}

// "docker", "podman", "apptainer" or "singularity": the one asked for, or the first that works. `notes`: what
// was passed over. Throws Error(kDependency) where none works.
std::string find_runtime(const std::string& wanted, const Surroundings& surroundings,
                         std::vector<std::string>& notes);

// Removes the containers with `label` whose launchers are gone. Others belong to jobs that run beside this
// one.
Step removal(const std::string& runtime, const std::string& label);

}  // namespace primus::launch
