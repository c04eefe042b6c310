// Checks option values by Slurm's rules. Internal to launch; option_values.h is the public interface.
// Thread-safe.
#pragma once

#include "launch/options/value_words.h"

namespace primus::launch::forms {

bool is_node_range(View text);
// Returns whether `text` is a time in Slurm's format: at most one '-' followed by at most two ':', with a
// number for each part.
bool is_slurm_time(View text);
bool is_megabytes(View text);
bool is_moment(View given);
bool is_gpu_count(View text);
bool is_resources(View text);
bool is_warning(View text, View letters);
bool is_distribution(View text);
bool is_dependency(View text);
bool is_array(View text);
bool is_cores(View text);
bool is_frequency(View text);
bool is_sampling(View text);
// Returns whether `text` has the form "verbose,TYPE...", where a list of numbers or masks may follow a type.
bool is_binding(View text, View types);
bool is_node_list(View text);

}  // namespace primus::launch::forms
