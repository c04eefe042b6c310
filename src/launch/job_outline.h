// Describes a command of Primus before it starts: the files that it reads and writes, and its notes, as far
// as this machine has the necessary files. Launchers use the description to give a container or a pod what
// the command needs.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

// The ranks on each axis of a job's mesh (engine/parallel/mesh.h).
struct JobMesh {
  int tensor = 1, context = 1, pipeline = 1, expert = 1, expert_tensor = 1;
};

struct JobOutline {
  std::vector<Path> reads = {};          // settings files: the experiment and the files that it extends
  std::vector<Path> writes = {};         // folders of the run's files and checkpoints
  std::set<std::string> variables = {};  // variables of this shell that the experiment reads
  std::vector<std::string> notes = {};   // the experiment's notes and warnings, one sentence each
  std::string framework = {};            // "native", "megatron" ...; empty: the command trains nothing
  std::string amd_image = {};            // image for AMD GPUs of a framework that the usual image lacks
  std::string process_per_node = {};     // framework that starts one process per node; empty: none
  // Title of a framework that neither saves nor stops at the signal before a time limit; empty: it does both.
  std::string deaf = {};
  std::optional<JobMesh> mesh = {};  // nullopt: the number of ranks or the framework's mesh is not known
  bool starts_anew = false;          // does not continue from its checkpoints (auto_continue_train: false)
};

// Returns the variables of `outline` that a launcher may set in a container or pod. Leaves out variables of a
// rank's place, which the launcher sets, and variables of this machine, such as PATH.
std::set<std::string> variables_to_pass(const JobOutline& outline);

// A folder of a container or a pod that is kept after its end.
struct KeptFolder {
  std::string inside;
  bool read_only = false;
};
// Returns notes on folders of `outline.writes` that are lost with the container or the pod, or that are
// read-only there. `start`: folder in which the command starts; empty: unknown. `place`: "container" or
// "pod". `remedy`: the next step.
std::vector<std::string> notes_on_lost_folders(const JobOutline& outline, const std::vector<KeptFolder>& kept,
                                               const std::string& start, const std::string& place,
                                               const std::string& remedy);

}  // namespace primus::launch
