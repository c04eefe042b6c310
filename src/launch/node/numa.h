// Binds a rank to the memory and cores next to its GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"

namespace primus::launch {

// `primus __numa COMMAND...`: the prefix that the launcher adds to a rank's command.
inline constexpr std::string_view kNumaWord = "__numa";

// Returns the NUMA node of the GPU with index LOCAL_RANK; -1 if the system does not report the node.
int numa_node_of_rank(const Surroundings& surroundings);

// Returns the cores of a NUMA node, from its list in /sys, such as "0-3,8". Throws Error(kInvalid) if the
// node does not exist.
std::vector<int> cores_of_numa_node(const Surroundings& surroundings, int node);

// Binds this process and its future children to the memory and cores of numa_node_of_rank(), if this node is
// known. Throws Error(kIo) if the system refuses.
void bind_to_gpu(const Surroundings& surroundings);

}  // namespace primus::launch
