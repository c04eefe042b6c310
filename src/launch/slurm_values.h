// Values of options as Slurm reads them. Internal to launch:
// option_values.h has what others use. Any thread.
#pragma once

#include "launch/value_words.h"

namespace primus::launch::forms {

bool is_node_range(View text);
// As Slurm reads it: at most one '-' in front of at most two ':', and a number for each of them.
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
// "verbose,TYPE..."; lists of numbers and masks follow a type.
bool is_binding(View text, View types);
bool is_node_list(View text);

}  // namespace primus::launch::forms
