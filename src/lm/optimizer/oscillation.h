// Stops weights that oscillate between two fp4 values while their master weights hardly move (key
// weight_deosc). Such a weight is set to one of the two values (turbo/oscillation has the rule). Wraps the
// rules of an optimizer, for weights whose matrix products are in fp4.
//
// Keeps two states of 4 bytes for each such weight: the distance that the weight has moved in the current
// window, and the distance that its fp4 value has moved. The update recomputes the weights and fp4 values
// before the step. This uses the stash, which is empty at that time: 4 bytes for each such weight of a unit's
// shard, plus 4 bytes for the weight's fp4 values before and after the step. A sharded unit needs 2 more
// bytes for each weight of the complete unit. The complete unit must be gathered, because weights in square
// tiles share scales. Every step from the first window on uses this memory.
#pragma once

#include <cstdint>

#include "engine/runtime/precision.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OscillationSettings {
  std::int64_t start_step = 0;  // number of the step after which the first window begins (at the earliest,
                                // step 1)
  std::int64_t period = 200;    // number of steps per window
  double ratio = 4;             // a weight oscillates if its fp4 value moves at least this factor times the
                                // distance of the weight
  std::int64_t log_freq = 0;    // number of windows between log lines; 0: nothing is logged

  std::int64_t steps_before() const { return start_step > 1 ? start_step : 1; }
  bool tracks(std::int64_t step) const { return step > steps_before(); }
  bool ends_window(std::int64_t step) const { return tracks(step) && (step - steps_before()) % period == 0; }
  // Returns whether a window ends with this step and is logged.
  bool reports(std::int64_t step) const {
    return log_freq > 0 && ends_window(step) && (step - steps_before()) / period % log_freq == 0;
  }
};

// Returns `rules` with a wrapped copy inserted before each rule. The copy also stops oscillation, and applies
// to the parameters whose products are in fp4.
UpdateRules without_oscillation(const UpdateRules& rules, const engine::PrecisionRecipe& recipe,
                                const OscillationSettings& settings);

}  // namespace primus
