// Checks of mode `direct` before it starts a command: errors and notes that would otherwise occur only in the
// ranks, or not at all. Internal to launch. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/node/hardware.h"
#include "launch/node/node.h"
#include "launch/plan.h"

namespace primus::launch {

// Variables that the user gives to the launcher, by --env or by the settings.
using Variables = std::map<std::string, std::string>;

// A command on this node, and the ranks that the launcher starts for it.
struct RanksHere {
  const DirectCommand& command;
  const NodePlace& place;
  bool script = false, python = false;  // a program of the user instead of Primus
  bool ranks = false;                   // the launcher or Slurm starts ranks; false: a single process

  // Returns whether processes of this program are the ranks.
  bool own_ranks() const { return ranks && !script; }
  // Returns the number of ranks on this node, which the command's words may choose.
  int count() const;
};

// Throws Error(kInvalid) if the command's option --nproc or --env GPUS_PER_NODE requests several ranks, but
// the launcher must start a single process (`single`).
void refuse_ranks_of_single(const DirectCommand& command, bool script, bool single, const Variables& given);

// Throws Error(kInvalid) if ranks of the native engine on several nodes have no shared secret.
void require_token(const NodePlace& place, const Surroundings& surroundings);

// Throws Error(kInvalid) if --numa, or ENABLE_NUMA_BINDING=1 (`by_variable`), is set on a node without GPUs.
void require_gpus_for_numa(const Accelerators& gpus, bool by_variable);

// Throws Error(kInvalid) for variables of a rank in `given`, for invalid settings of the ranks' communication
// (PRIMUS_TRANSPORT ...), and for more ranks than the assumed GPUs of PRIMUS_GPU_MODEL.
void check_ranks_here(const RanksHere& here, const Variables& given, const Accelerators& gpus,
                      const Surroundings& surroundings);

// Appends notes about the GPUs of this node, idle GPUs, and numbers and addresses that have no effect.
void note_ranks_here(const RanksHere& here, const DirectSettings& settings, const Variables& given,
                     const Accelerators& gpus, const Surroundings& surroundings,
                     std::vector<std::string>& notes);

// Notes a setting gpus_per_node that a variable GPUS_PER_NODE overrides.
void note_overridden_setting(const DirectSettings& settings, const std::string& variable,
                             std::vector<std::string>& notes);

// Notes input files that the job will not find. Skipped with hooks or patches, which may still create them.
// `in_this_folder` and `on_this_machine`: as for is_looked_for_here().
void note_absent_inputs(const DirectSettings& settings, const DirectCommand& command, const Variables& given,
                        bool in_this_folder, bool on_this_machine, std::vector<std::string>& notes);

// Adds the notes of the experiment. Returns whether its framework starts one process per node. Skipped with
// hooks or patches, which may still change the settings.
bool note_outline(const DirectSettings& settings, const DirectCommand& command, int nodes, int ranks,
                  const Variables& given, std::vector<std::string>& notes);

// Does both for a command on this node.
bool note_job_here(const RanksHere& here, const DirectSettings& settings, const Variables& given,
                   std::vector<std::string>& notes);

// Returns the name with which a program of the current folder is started: "./job" for "job".
std::string startable(const std::string& script);

// Throws Error(kInvalid) if the user may not execute `script`, an existing file.
void require_executable(const std::string& script);

// Throws Error(kInvalid) if the folder of the log file does not exist and cannot be created.
void require_log_folder(const Path& log_file);

}  // namespace primus::launch
