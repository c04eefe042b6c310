// The command that starts a container with Primus inside.
#pragma once

#include <map>
#include <string>

#include "launch/container/container.h"
#include "launch/node/hardware.h"
#include "launch/plan.h"

namespace primus::launch {

// Where the container runs.
struct ContainerPlace {
  std::map<std::string, std::string> variables;  // NNODES, NODE_RANK ...
  bool several_nodes = false;
  Accelerators gpus = {};
  bool here = true;  // true: the container runs on this node; false: the job's nodes choose the devices
};

// Throws Error for a missing image, missing devices or folders, or invalid options.
Step container_step(const ContainerRequest& request, const Surroundings& surroundings,
                    const std::string& runtime, ContainerPlace place);

}  // namespace primus::launch
