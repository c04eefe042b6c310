// Binding a rank to the memory and the cores beside its GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"

namespace primus::launch {

// `primus __numa COMMAND...`: what the launcher puts in front of a rank's command.
inline constexpr std::string_view kNumaWord = "__numa";

// The memory node of the GPU that LOCAL_RANK counts; -1 where the machine does not say.
int numa_node_of_rank(const Surroundings& surroundings);

// The cores of a memory node: "0-3,8" of /sys. Throws Error(kInvalid) where it is not there.
std::vector<int> cores_of_numa_node(const Surroundings& surroundings, int node);

// Binds this process, and what it starts, to the memory and cores of numa_node_of_rank(), where that is
// known. Throws Error(kIo) where the system refuses.
void bind_to_gpu(const Surroundings& surroundings);

}  // namespace primus::launch
