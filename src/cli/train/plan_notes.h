// Notes on the plan of a run: settings that have no effect, that --fit replaces, and folders that a run could
// not write.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cli/command.h"
#include "cli/options/experiment.h"
#include "config/experiment.h"
#include "launch/job_outline.h"

namespace primus::cli {

// Notes the settings of the experiment's file that have no effect.
void note_unused_settings(const config::Experiment& experiment, const Console& console);

// Returns what a launcher needs to know about a job of this size that trains `experiment`, which `arguments`
// have read. Throws Error for settings that the experiment's framework does not support.
launch::JobOutline outline_of(const ExperimentArguments& arguments, const config::Experiment& experiment,
                              std::int64_t nodes, std::int64_t ranks_per_node);

// Notes a plan that uses fewer GPUs per host than `hardware` states. `used`: the number that it uses.
void note_unused_gpus(const config::Hardware& hardware, std::int64_t used, const Console& console);

// Notes the settings of the command line whose values --fit has replaced. `settings`: the settings that --fit
// chose, as "key=value".
void note_replaced_by_fit(std::span<const std::string> settings, const config::Experiment& given,
                          const config::Experiment& fitted, const Console& console);

// Warns if a run on this machine could not create the folder of its files or of its checkpoints, or if the
// disk is too small for them. `checkpoint_bytes`: size of a checkpoint.
void note_storage(const config::Experiment& experiment, std::int64_t checkpoint_bytes,
                  const Console& console);

}  // namespace primus::cli
