// AMD Primus's first patch of pipelines, patch_zero_bubble and its keys, as the schedule that pp_algorithm
// names.
#pragma once

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Sets patch_primus_pipeline and pp_algorithm of a native experiment as its zero-bubble keys ask for:
//
//   patch_zero_bubble                                      zero-bubble (ZB-H1)
//   ... zero_bubble_v_schedule: true, ..._mem_setup: zb    zbv-formatted;  half: v-half;  min: v-min
//   ... enable_zero_bubble: false                          1F1B, as without the patch
//
// Adds a problem for a schedule that is not there (1F1B-V, ZB-H2), and where pp_algorithm names another one.
void take_zero_bubble(Experiment& experiment, Problems& problems);

}  // namespace primus::config
