// The command that starts a container with Primus in it.
#pragma once

#include <map>
#include <string>

#include "launch/container.h"
#include "launch/hardware.h"
#include "launch/plan.h"

namespace primus::launch {

// Where the container runs.
struct ContainerPlace {
  std::map<std::string, std::string> variables;  // NNODES, NODE_RANK ...
  bool several_nodes = false;
  Accelerators gpus = {};
  bool here = true;  // on this node; otherwise devices are left to the job's nodes
};

// Throws Error: no image, devices and folders that are not there, options that cannot be.
Step container_step(const ContainerRequest& request, const Surroundings& surroundings,
                    const std::string& runtime, ContainerPlace place);

}  // namespace primus::launch
