// Maps AMD Primus's older pipeline patch (patch_zero_bubble and its keys) to schedules of pp_algorithm.
#pragma once

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Sets patch_primus_pipeline and pp_algorithm of a native experiment according to its zero-bubble keys:
//
//   patch_zero_bubble                                      zero-bubble (ZB-H1)
//   ... zero_bubble_v_schedule: true, ..._mem_setup: zb    zbv-formatted;  half: v-half;  min: v-min
//   ... enable_zero_bubble: false                          1F1B, as without the patch
//
// Adds a problem for an unsupported schedule (1F1B-V, ZB-H2), and if pp_algorithm names another schedule.
void take_zero_bubble(Experiment& experiment, Problems& problems);

}  // namespace primus::config
