// Mode direct: runs a command on this node, with one process or one per rank of the node.
//
// The order is: variables of --env; hooks; patches; files of variables; variables of --env again, because
// they override hooks; the command. A Primus command with ranks gets the node's place as options (--nproc,
// --nnodes ...) and starts its ranks. Python scripts are started by torchrun, other programs by our launcher
// for ranks (local_launch.h), with torchrun's environment.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/direct/hooks.h"
#include "launch/job_outline.h"
#include "launch/node/node.h"
#include "launch/options/absent_input.h"
#include "launch/plan.h"
#include "launch/ranks/local_launch.h"
#include "launch/settings.h"

namespace primus::launch {

struct DirectCommand {
  std::vector<std::string> words;  // the words after "--"
  bool has_ranks = false;          // for Primus commands: whether ranks cooperate on the command
  bool one_process = false;        // for Primus commands: always one process per node
  bool debug = false;
  std::vector<std::string> reads = {};  // files and folders of this machine that the command's options name
  std::vector<std::string> notes = {};  // notes about checks that were not possible here, one sentence each
  HookCommand hooks;
  // For Primus commands with ranks: throws if a job of this size could not start (Command::check_job). Size 0
  // means unknown. May be null.
  std::function<void(int nodes, int ranks_per_node, const std::map<std::string, std::string>& variables)>
      check_job = {};
  // For Primus commands with ranks: returns input files that do not exist (Command::absent_inputs).
  std::function<std::vector<AbsentInput>(const std::map<std::string, std::string>& variables)> absent_inputs =
      {};
  // For Primus commands: describes a job of this size (Command::outline). May be null.
  std::function<JobOutline(int nodes, int ranks_per_node,
                           const std::map<std::string, std::string>& variables)>
      outline = {};
  std::function<bool()> needs_token = {};  // whether ranks on several nodes must share a secret; null: yes
};

// Returns whether the command's words set the number of ranks per node.
bool asks_for_ranks(const std::vector<std::string>& words);

struct DirectPlan {
  Plan plan;  // one step: the command
  // Set for a program that run_local starts once per rank; otherwise the step is one process.
  std::optional<LocalLaunch> ranks;
  std::vector<Path> hooks, patches;
  std::optional<Path> log_file;
  std::vector<std::string> notes;
};

// Planning reads the environment and changes nothing. Throws Error for a missing script, patch, hook folder
// or file of variables, for a missing torchrun or python3 (kDependency), and for an invalid place in the job.
DirectPlan plan_direct(const DirectSettings& settings, const DirectCommand& command,
                       const Surroundings& surroundings);

// Describes the nodes on which `primus direct` will run, if the nodes are not known yet. `nodes`: their
// number; 0: the job determines it. `address` and `port` may be placeholders.
struct ElsewhereNodes {
  int nodes = 0;
  std::optional<int> ranks;  // ranks per node; nullopt: one per GPU
  std::optional<int> tasks;  // tasks per node, if each task is a rank
  std::string address, port, node;
  bool same_folder = false;             // runs in the current folder, or in a copy that all nodes see
  std::optional<int> gpus = {};         // GPUs per node that the job requests; nullopt: unknown
  std::optional<int> given_ranks = {};  // ranks per node that the user sets by --env GPUS_PER_NODE
  std::map<std::string, std::string> outer_variables = {};  // variables of the container's --env
  // Runs in this folder instead of the current one. plan_direct_elsewhere() then does not check files with
  // relative names; callers that can read the folder make it the current one.
  std::optional<std::string> folder = {};
  // The cores and the memory that a task of the job gets on a node; nullopt: unknown.
  std::optional<int> cores = {};
  std::optional<double> memory = {};    // bytes
  std::vector<std::string> names = {};  // of the nodes, in the launcher's order; empty: unknown
  // Number of tasks of the job, each with one GPU, if the number of nodes is unknown; nullopt: unknown.
  std::optional<int> all_tasks = {};
};
// Plans `primus direct` on these nodes. Throws Error(kInvalid) also for options and variables that contradict
// the job, such as --nnodes 4 in a job of 2 nodes.
Plan plan_direct_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                           const ElsewhereNodes& nodes, const std::string& program);

// Returns whether this process can check that an input file of the job exists. Returns true if the job runs
// on this machine. Also returns true if the job runs in the current folder (`in_this_folder`) and the file is
// in that folder.
bool is_looked_for_here(const Path& file, bool in_this_folder, bool on_this_machine);
// Returns the note for a file that does not exist on this machine but may exist on the job's machines:
// "--patch '/x' was not checked, ...".
std::string not_looked_for(const std::string& what, const Path& file);
// Returns the note for a relative file of this folder from which the plan of a job in another folder was
// made.
std::string looked_for_in_this_folder(const std::string& what, const Path& file);

// Runs hooks and patches, and plans again with their changes. Then replaces this process by the command, or
// runs the command and returns its exit code. `show` receives lines for the user.
int run_direct(const DirectSettings& settings, DirectCommand command, const Surroundings& surroundings,
               const std::function<void(std::string_view)>& show);

}  // namespace primus::launch
