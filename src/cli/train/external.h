// Training with another framework: what `primus train pretrain` does where the experiment's framework is not
// native.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/options/rank_options.h"
#include "config/experiment.h"

namespace primus::cli {

struct ExternalOptions {
  std::optional<std::string> backend_path;
  RankOptions ranks = {};
  bool dry_run = false, json = false, quiet = false;
};

// Shows, or starts and watches, the job; the exit code. Throws Error where the framework cannot do what the
// experiment says, or is not on this machine.
int run_external(const config::Experiment& experiment, const ExternalOptions& options, Console& console);

// Throws Error where the framework cannot do what the experiment says, on so many ranks.
void check_external(const config::Experiment& experiment, std::int64_t nodes, std::int64_t ranks_per_node);

}  // namespace primus::cli
