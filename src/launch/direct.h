// Mode direct: a command on this node, by one process or by one for each rank of the node.
//
// In order: variables of --env; hooks; patches; files of variables, and --env once more, because who typed it
// knows better than a hook; then the command. A command with ranks is given its node's place as options
// (--nproc, --nnodes ...) and starts them itself. Python scripts are started by torchrun, other programs by
// the launcher for ranks (local_launch.h), with torchrun's environment.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/absent_input.h"
#include "launch/hooks.h"
#include "launch/local_launch.h"
#include "launch/node.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

struct DirectCommand {
  std::vector<std::string> words;  // behind "--"
  bool has_ranks = false;          // of Primus's own commands: whether ranks work on it together
  bool one_process = false;        // of Primus's own commands: one process for each node, whatever there is
  bool debug = false;
  std::vector<std::string> notes = {};  // what could not be looked at here, one sentence each
  HookCommand hooks;
  // Of Primus's own commands with ranks: throws what would keep a job of so many from starting
  // (Command::check_job); 0: not known. Null: nothing is known.
  std::function<void(int nodes, int ranks_per_node, const std::map<std::string, std::string>& variables)>
      check_job = {};
  // Of the same: files that it will read and that are not there (Command::absent_inputs).
  std::function<std::vector<AbsentInput>(const std::map<std::string, std::string>& variables)> absent_inputs =
      {};
  std::function<bool()> needs_token = {};  // whether ranks on several nodes have to share a secret; null: yes
};

// Whether a command's words say how many ranks a node has.
bool asks_for_ranks(const std::vector<std::string>& words);

struct DirectPlan {
  Plan plan;  // one step: the command
  // A program that is started once for each rank, by run_local; otherwise the step is one process.
  std::optional<LocalLaunch> ranks;
  std::vector<Path> hooks, patches;
  std::optional<Path> log_file;
  std::vector<std::string> notes;
};

// Reads what there is and changes nothing. Throws Error: a script, patch, hook folder or file of variables
// that is not there; torchrun or python3 missing (kDependency); a place in the job that makes no sense.
DirectPlan plan_direct(const DirectSettings& settings, const DirectCommand& command,
                       const Surroundings& surroundings);

// The same for nodes that are not known here: what `primus direct` will do on each of `nodes` (0: as many as
// the job will have). `address` and `port` may stand for what is known there only.
struct ElsewhereNodes {
  int nodes = 0;
  std::optional<int> ranks;  // of each; nullopt: one for each GPU
  std::optional<int> tasks;  // of each: processes that are ranks already
  std::string address, port, node;
  bool same_folder = false;  // it runs in this process's folder, or in a copy of it that all nodes see
};
Plan plan_direct_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                           const ElsewhereNodes& nodes, const std::string& program);

// Whether a file that the job is to find is looked for before it is started: where it runs on this machine;
// and in the current folder, where it runs in that folder (`in_this_folder`).
bool is_looked_for_here(const Path& file, bool in_this_folder, bool on_this_machine);
// What is said of one that is neither here nor looked for: "--patch '/x' is not on this machine, ...".
std::string not_looked_for(const std::string& what, const Path& file);

// Runs hooks and patches, plans again with what they changed, and becomes the command, or runs it and returns
// its exit code. `show` gets lines for the user.
int run_direct(const DirectSettings& settings, DirectCommand command, const Surroundings& surroundings,
               const std::function<void(std::string_view)>& show);

// The variables of a file of lines NAME=VALUE: "export " in front, quotes around a value, empty lines and
// comments are fine; other shell code is an Error(kInvalid) with file:line.
std::vector<std::string> read_environment_file(const Path& file);

}  // namespace primus::launch
