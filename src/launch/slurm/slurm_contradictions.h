// Checks options of Slurm that contradict each other. Internal to launch. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/options/foreign_options.h"

namespace primus::launch {

// Removes options of the settings that contradict options of the command line (`given`) from `options`, which
// contains both. Throws Error(kInvalid) for other options that contradict each other.
// `batch`: the options are sbatch's options.
void settle_contradictions(const std::vector<GivenOption>& given, bool batch,
                           std::vector<GivenOption>& options);

// Sets the cores and the memory that the launcher of a node gets.
void set_limits(const std::vector<GivenOption>& options, ElsewhereNodes& nodes);

// Notes options that request no GPU at all.
void note_no_gpus(const std::vector<GivenOption>& options, std::vector<std::string>& notes);

// Notes a launcher that gets fewer cores than it starts ranks.
void note_few_cores(const std::vector<GivenOption>& options, const ElsewhereNodes& nodes,
                    std::vector<std::string>& notes);

// Notes files of --output and --error in folders that do not exist here: Slurm creates no folders, and ends
// the job at once without output. `is_known`: relative names refer to the current folder.
void note_output_folders(const std::vector<GivenOption>& options, bool is_known,
                         std::vector<std::string>& notes);

}  // namespace primus::launch
