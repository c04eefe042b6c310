// An experiment as a job of another training framework. A job contains the command of each process, the files
// that the command reads, and the differences from the experiment. Making a job reads files and writes none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/backend_fields.h"
#include "config/experiment.h"

namespace primus::backends {

using Path = std::filesystem::path;

// The size of the job, as far as it is known.
struct JobShape {
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::string amd_model = {};  // "MI300X", "AMD" for an unknown model; empty: no AMD GPUs here
  std::int64_t ranks() const { return nodes * ranks_per_node; }
};

struct JobFile {
  Path path;
  std::string text;
};

struct ExternalJob {
  std::string framework, title;      // "megatron", "Megatron-LM"
  std::vector<std::string> command;  // command of each process, without the interpreter
  // Variables for the framework, used if neither the experiment nor the environment sets them.
  std::map<std::string, std::string> environment = {};
  std::map<std::string, std::string> required = {};  // variables that override existing values
  std::vector<JobFile> files = {};                   // files that the command reads
  // Complete sentences about settings whose meaning differs in the framework.
  std::vector<std::string> warnings = {};
  std::vector<std::string> notes = {};  // complete sentences that inform the user
  // Settings without a counterpart, by reason.
  std::map<std::string, std::vector<std::string>> dropped = {};
  bool saves_at_warning = false;     // saves and stops at SIGUSR1, the signal before a time limit
  bool process_per_node = false;     // one process uses all GPUs of a node
  bool last_rank_reports = true;     // true: the last rank prints the metrics; false: the first rank does
  bool second_line_is_mean = false;  // the values in the log's second line are means over the first two steps
};

// Returns the job of experiment.framework, which is not native. `checkout`: folder of the framework's
// sources; empty: not installed. In this case, the command contains the framework's name instead of this
// folder. Throws Error listing all settings that the framework does not support.
ExternalJob render_job(const config::Experiment& experiment, const config::BackendFields& fields,
                       const Path& checkout, const JobShape& shape);

}  // namespace primus::backends
