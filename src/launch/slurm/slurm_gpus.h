// The number of GPUs of a node according to Slurm's options (--gpus-per-node, --gres, --gpus,
// --gpus-per-task). Internal to launch. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/options/foreign_options.h"

namespace primus::launch {

struct NodeGpus {
  std::optional<int> count;        // GPUs that the tasks of a node get; nullopt: the options do not state it
  std::vector<std::string> notes;  // sentences about GPUs that stay idle
};

// `nodes`: number of nodes; 0: unknown. `tasks`: number of tasks per node. Throws Error(kInvalid) for options
// that request different numbers of GPUs, and for a total that the nodes cannot share equally.
NodeGpus gpus_of_node(const std::vector<GivenOption>& options, int nodes, int tasks);

// Throws Error(kInvalid) if --gpu-bind gives the only task of a node fewer GPUs than the node's `count`. This
// task is the launcher, and its ranks can use only its GPUs.
void refuse_few_bound_gpus(const std::vector<GivenOption>& options, const std::optional<int>& count);

// Returns the number of GPUs of --gpus-per-task; nullopt: not given or not stated.
std::optional<int> gpus_of_task(const std::vector<GivenOption>& options);

}  // namespace primus::launch
