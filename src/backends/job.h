// One experiment as a job of another training framework: the command of each process, the files it reads, and
// what differs from what the experiment says. Making one reads files and changes nothing.
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

// How large the job is, as far as it is known.
struct JobShape {
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::string amd_model = {};  // "MI300X", "AMD" where the model is not known; empty: no GPUs of AMD here
  std::int64_t ranks() const { return nodes * ranks_per_node; }
};

struct JobFile {
  Path path;
  std::string text;
};

struct ExternalJob {
  std::string framework, title;      // "megatron", "Megatron-LM"
  std::vector<std::string> command;  // of each process, without the program that interprets it
  std::map<std::string, std::string> environment =
      {};                                            // where the experiment and the surroundings say nothing
  std::map<std::string, std::string> required = {};  // variables that it needs, whatever they were
  std::vector<JobFile> files = {};                   // that the command reads
  std::vector<std::string> warnings = {};            // whole sentences: what means something else there
  std::vector<std::string> notes = {};               // whole sentences: what is worth knowing
  // Settings without a counterpart, by the reason why.
  std::map<std::string, std::vector<std::string>> dropped = {};
  bool process_per_node = false;     // one process has all of a node's GPUs
  bool last_rank_reports = true;     // otherwise the first one does
  bool second_line_is_mean = false;  // the log's second line is the mean of the first two steps
};

// The job of experiment.framework, which is not native. `checkout`: its sources, empty where they are not
// there yet; the command then has the framework's name for it. Throws Error where the framework cannot do
// what the experiment says: all that is wrong at once.
ExternalJob render_job(const config::Experiment& experiment, const config::BackendFields& fields,
                       const Path& checkout, const JobShape& shape);

}  // namespace primus::backends
