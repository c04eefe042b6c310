// Training with another framework: used by `primus train pretrain` if the experiment's framework is not
// native.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options/rank_options.h"
#include "config/experiment.h"

namespace primus::cli {

struct ExternalOptions {
  std::optional<std::string> backend_path;
  RankOptions ranks = {};
  bool dry_run = false, json = false, quiet = false;
};

// Notes and warnings of a job of this size: lines that begin with "note: " or "warning: ". process_per_node:
// title of a framework that starts one process per node; empty: it starts one per rank. amd_image: the image
// for AMD GPUs, if the framework is not in AMD Primus's image. deaf: title of a framework that does not save
// at SIGUSR1; empty: it saves. Throws Error as check_external().
struct ExternalNotes {
  std::vector<std::string> notes = {};
  std::string process_per_node = {}, amd_image = {}, deaf = {};
};
ExternalNotes notes_on_external(const config::Experiment& experiment, std::int64_t nodes,
                                std::int64_t ranks_per_node);

// Shows the job, or starts and watches it; returns the exit code. Throws Error if the framework does not
// support the experiment or is not installed on this machine.
int run_external(const config::Experiment& experiment, const ExternalOptions& options, Console& console);

// Throws Error if the framework does not support the experiment on this number of ranks.
void check_external(const config::Experiment& experiment, std::int64_t nodes, std::int64_t ranks_per_node);

}  // namespace primus::cli
