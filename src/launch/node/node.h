// Determines which node of a job this machine is, and how many ranks this machine starts.
//
// The variables have AMD Primus's names: NNODES, NODE_RANK, GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT. In a
// Slurm job, the values of unset variables follow from Slurm's variables. Elsewhere, the default is one node
// with one rank per GPU (or one rank without GPUs). In a Slurm job, Slurm determines the nodes. If NNODES,
// NODE_RANK or MASTER_ADDR of the submitting shell contradict Slurm, the variable is ignored with a note.
// Variables that the user gives to the launcher (--env) override Slurm's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/node/hardware.h"
#include "launch/plan.h"

namespace primus::launch {

struct NodePlace {
  int nodes = 1, node = 0;
  int ranks = 1;               // ranks per node
  std::string master_address;  // empty: a single node, which chooses an address
  std::uint16_t master_port = 0;

  // Set if Slurm has started one task per rank. In this case, this process is a rank and starts no other
  // ranks.
  struct Task {
    int rank = 0, world = 1, local_rank = 0, local_world = 1;
  };
  std::optional<Task> task = {};
  bool ranks_are_tasks = false;         // the number of ranks is unset, and no GPUs were found
  std::vector<std::string> notes = {};  // notes about ignored variables, one sentence each
};

// Values from settings and options, used if variables are not set.
struct NodeDefaults {
  std::optional<int> nodes, ranks;
  std::optional<std::string> master_address;
  std::optional<std::uint16_t> master_port;
  std::set<std::string> typed = {};  // variables given to the launcher, which override Slurm's
};

inline constexpr std::uint16_t kMasterPort = 1234;  // AMD Primus's default, outside Slurm jobs
inline constexpr int kMaxNodes = 1 << 16, kMaxRanksPerNode = 4096;

// Returns the port that all nodes of a Slurm job compute without communication. Consecutive jobs get
// different ports, below the range that systems assign automatically.
std::uint16_t port_of_job(std::uint64_t job);

// Throws Error(kInvalid) naming a variable that is not a number or contradicts other variables.
NodePlace find_node(const Surroundings& surroundings, const NodeDefaults& defaults, const Accelerators& gpus);

// Describes this process as one of several tasks of a Slurm step (srun). Only for processes that no launcher
// has made a rank, so RANK and WORLD_SIZE are unset.
struct StepTask {
  std::int64_t task = 0, tasks = 2;
  std::string step;       // job and step number
  bool launched = false;  // the launcher started this process inside the task (kLaunchedStep)
};
// Returns nullopt for batch scripts and interactive allocations. Throws Error(kInvalid) for a variable that
// is not a number.
std::optional<StepTask> task_of_step(const Surroundings& surroundings);

// The launcher sets this to the Slurm step of its processes. A process in a nested step ignores this
// variable.
inline constexpr const char* kLaunchedStep = "PRIMUS_LAUNCHED_STEP";
// Name of a variable that is set if GPUS_PER_NODE is the number of Slurm tasks, not the number of GPUs.
inline constexpr const char* kTasksAsRanks = "PRIMUS_TASKS_AS_RANKS";

// Checks variables of NodePlace that the user gave to a launcher of remote nodes. Throws Error(kInvalid) for
// a value that is not a number in its range.
void check_place_variables(const std::map<std::string, std::string>& variables);

// Parses the value of a variable that sets the number of ranks per node. Throws Error(kInvalid) naming the
// variable.
int parse_ranks(const std::string& variable, const std::string& value);

// Expands a Slurm list of names: "n[01-03,7],login" -> n01 n02 n03 n7 login. Throws Error(kInvalid).
std::vector<std::string> expand_nodes(std::string_view list);

// Returns the nodes of this Slurm step, or of its job, in the order of Slurm's node numbers; empty: unknown.
std::vector<std::string> nodes_of_step(const Surroundings& surroundings);

// Returns the first name of such a list without expanding the entire list.
std::string first_node(std::string_view list);

// Returns the number of tasks on node `node`, from Slurm's list of tasks per node, "2(x3),1". Throws
// Error(kInvalid).
int tasks_of_node(std::string_view text, int node);

// Throws Error(kInvalid) if such a list has different numbers of tasks for the first `nodes` nodes: then
// nodes cannot exchange their places.
void require_equal_tasks(std::string_view text, int nodes);

}  // namespace primus::launch
