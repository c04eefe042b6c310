// Which node of a job this machine is, and how many ranks it starts.
//
// Primus's variables say it: NNODES, NODE_RANK, GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT. What they leave open
// comes from Slurm's variables inside of a Slurm job, and from defaults elsewhere: one node, a rank for each
// GPU (one without GPUs). Inside of a Slurm job, Slurm knows the nodes: NNODES, NODE_RANK and MASTER_ADDR of
// the shell that submitted the job do not count where they contradict it, and a note says so. Those that were
// given to the launcher itself (--env) count.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hardware.h"
#include "launch/plan.h"

namespace primus::launch {

struct NodePlace {
  int nodes = 1, node = 0;
  int ranks = 1;               // of each node
  std::string master_address;  // empty: of one node, which chooses for itself
  std::uint16_t master_port = 0;

  // Slurm has started one task for each rank: this process is one of them and starts no others.
  struct Task {
    int rank = 0, world = 1, local_rank = 0, local_world = 1;
  };
  std::optional<Task> task = {};
  bool ranks_are_tasks = false;         // nobody said how many there are, and there is no GPU to count
  std::vector<std::string> notes = {};  // variables that do not count, one sentence each
};

// What settings and options say where variables are silent.
struct NodeDefaults {
  std::optional<int> nodes, ranks;
  std::optional<std::string> master_address;
  std::optional<std::uint16_t> master_port;
  std::set<std::string> typed = {};  // variables that were given to the launcher: they count over Slurm's
};

inline constexpr std::uint16_t kMasterPort = 1234;  // Primus's, where there is no Slurm job
inline constexpr int kMaxNodes = 1 << 16, kMaxRanksPerNode = 4096;

// The port that all nodes of a Slurm job agree on without talking: another one for the next jobs, below the
// ports that systems hand out by themselves.
std::uint16_t port_of_job(std::uint64_t job);

// Throws Error(kInvalid): a variable that is no number or does not fit the others, with its name.
NodePlace find_node(const Surroundings& surroundings, const NodeDefaults& defaults, const Accelerators& gpus);

// One of several tasks of a step of Slurm's (srun) that no launcher gave a rank: RANK and WORLD_SIZE are
// unset.
struct StepTask {
  std::int64_t task = 0, tasks = 2;
  std::string step;       // its job and number
  bool launched = false;  // a launcher of ours started this process within the task (kLaunchedStep)
};
// A batch script and an allocation's shell are no tasks. Throws Error(kInvalid): a variable that is no
// number.
std::optional<StepTask> task_of_step(const Surroundings& surroundings);

// What our launcher tells its processes: the step in which it placed them. Another step within starts anew.
inline constexpr const char* kLaunchedStep = "PRIMUS_LAUNCHED_STEP";
// And what GPUS_PER_NODE is where nobody said it and it is the number of Slurm's tasks: no GPUs are expected.
inline constexpr const char* kTasksAsRanks = "PRIMUS_TASKS_AS_RANKS";

// The variables of a node's place that a launcher is given for nodes elsewhere. Throws Error(kInvalid) for
// one that is no number in its range.
void check_place_variables(const std::map<std::string, std::string>& variables);

// The value of a variable that says how many ranks a node has. Throws Error(kInvalid) naming it.
int parse_ranks(const std::string& variable, const std::string& value);

// The names in a list of Slurm's: "n[01-03,7],login" -> n01 n02 n03 n7 login. Throws Error(kInvalid).
std::vector<std::string> expand_nodes(std::string_view list);

// The first of them, without making a list of all.
std::string first_node(std::string_view list);

// Slurm's "2(x3),1", tasks of each node, of the node `node`. Throws Error(kInvalid).
int tasks_of_node(std::string_view text, int node);

}  // namespace primus::launch
