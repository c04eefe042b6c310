// The words with which a user states the size of a job or a node's place in it: options of a Primus command
// (--nnodes, --node_rank, --nproc, --world) and variables (NNODES, NODE_RANK, GPUS_PER_NODE). Launchers
// compare these options and variables with the job, and add only options that the command lacks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::launch {

// The known properties of a job's nodes.
struct JobShape {
  int nodes = 0;  // 0: unknown
  // The number of the node that runs the command; nullopt: all nodes run the command.
  std::optional<int> node = {};
  std::optional<int> ranks = {};        // ranks per node, unless the command chooses them
  std::optional<int> gpus = {};         // GPUs per node that the job requests
  std::optional<int> tasks = {};        // tasks per node, if each task is a rank
  std::optional<int> given_ranks = {};  // ranks per node that --env GPUS_PER_NODE sets
};

// Returns the last value that a command's words give to one of the options above, in any spelling: "--nproc"
// also finds --nproc_per_node, and "--node_rank" also finds --node-rank. nullopt: not given.
std::optional<std::string> place_option(const std::vector<std::string>& words, std::string_view option);

// Returns the number of nodes without ranks that a command's words set (--spares); 0: none, or not a number.
int spare_nodes(const std::vector<std::string>& words);

// Returns the device that a command's words name, by the key device=NAME or the option --device; nullopt:
// none.
std::optional<std::string> device_of(const std::vector<std::string>& words);

// Throws Error(kInvalid) if the command's words name a device that the command does not get. `gpus`: "amd",
// "nvidia", "none"; other text is not checked. `origin`: the option that gives the GPUs.
void check_device(const std::vector<std::string>& words, std::string_view gpus, std::string_view origin);

// Throws Error(kInvalid) for options that contradict the job. Each node would refuse or misunderstand such
// options. A command on a single known node may name other nodes, on which the user starts it separately.
void check_place_options(const std::vector<std::string>& words, const JobShape& job);

// Throws Error(kInvalid) for variables given by --env that contradict the job.
void check_job_variables(const std::map<std::string, std::string>& variables, const JobShape& job);

// Throws Error(kInvalid) for variables of a rank, such as RANK and WORLD_SIZE, that --env sets to the same
// value in all ranks. The launcher sets these variables. WORLD_SIZE and LOCAL_WORLD_SIZE are accepted if they
// agree with the job. `words`: the command whose options may choose the number of ranks.
void check_rank_variables(const std::map<std::string, std::string>& variables,
                          const std::vector<std::string>& words, const JobShape& job);

// Replaces the address and the port of node 0 by values that the user has set in `variables`. The address
// "localhost" means that the user has set no address.
void use_given_master(const std::map<std::string, std::string>& variables, std::string& address,
                      std::string& port);

// Returns a note if a node starts fewer ranks than it gets GPUs; nullopt otherwise. `words`: the command
// whose options may choose the number of ranks.
std::optional<std::string> idle_gpus(const std::vector<std::string>& words, const JobShape& job);

}  // namespace primus::launch
