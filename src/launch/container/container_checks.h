// Checks options of a container that contradict each other, or that have no effect. Internal to launch.
// Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "launch/container/container.h"
#include "launch/node/hardware.h"
#include "launch/options/foreign_options.h"
#include "launch/plan.h"

namespace primus::launch {

// The error for rm: false.
inline constexpr const char* kKeptContainer =
    "a container cannot be kept after its end, because the launcher removes it";

// Throws Error(kInvalid) for options with which the launcher or the container cannot work. `options`: the
// options of the settings and of the command line.
void check_container_options(const ContainerRequest& request, const std::vector<GivenOption>& options);

// Throws Error(kInvalid) for --gpus, which selects NVIDIA GPUs, on a node with AMD GPUs (`vendor`), or with
// --accelerator amd.
void refuse_gpus_of_nvidia(Vendor vendor, const ContainerRequest& request,
                           const std::vector<GivenOption>& options);

// Returns notes on options without the effect that a reader may expect.
std::vector<std::string> notes_on_container(const ContainerRequest& request,
                                            const std::vector<GivenOption>& options, bool several_nodes,
                                            const Surroundings& surroundings);

// Returns notes on a container that gets less or more of a node than the job: GPUs, cores, memory.
std::vector<std::string> notes_on_resources(const ContainerRequest& request,
                                            const std::vector<GivenOption>& options,
                                            const ElsewhereNodes& job);

}  // namespace primus::launch
