// Stops weights that oscillate between two fp4 values while their masters hardly move, by setting them to one
// of the two values (key weight_deosc; turbo/oscillation has the rule). Wraps an optimizer's rules for
// weights whose products are in fp4.
//
// Keeps two states of 4 bytes for each such weight: the distance that the weight has moved in the current
// window, and the distance that its fp4 value has moved. The weights and values before a step are recomputed
// at its update. This needs memory from the stash, which is empty at that time: 4 bytes for each such weight
// of a unit's shard, and 4 more for the weight's fp4 values before and after the step. A sharded unit also
// needs 2 bytes for each weight of the entire unit, because square tiles of weights share scales and the unit
// must be gathered. This memory is needed in every step from the first window on.
#pragma once

#include <cstdint>

#include "engine/precision.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OscillationSettings {
  std::int64_t start_step = 0;  // the first window begins after this step, or after step 1 if that is later
  std::int64_t period = 200;    // number of steps per window
  double ratio = 4;             // a weight oscillates if its fp4 value moves this many times as far as the
                                // weight
  std::int64_t log_freq = 0;    // number of windows per log line; 0: no log

  std::int64_t steps_before() const { return start_step > 1 ? start_step : 1; }
  bool tracks(std::int64_t step) const { return step > steps_before(); }
  bool ends_window(std::int64_t step) const { return tracks(step) && (step - steps_before()) % period == 0; }
  // Whether a window that is logged ends with this step.
  bool reports(std::int64_t step) const {
    return log_freq > 0 && ends_window(step) && (step - steps_before()) / period % log_freq == 0;
  }
};

// Returns the rules, and before each rule a wrapper that also stops oscillation. The wrapper updates the
// parameters whose products are in fp4.
UpdateRules without_oscillation(const UpdateRules& rules, const engine::PrecisionRecipe& recipe,
                                const OscillationSettings& settings);

}  // namespace primus
