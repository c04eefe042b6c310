// Stops weights that oscillate between two fp4 values while their masters hardly move: sets them to one of
// the values (weight_deosc; turbo/oscillation has the rule). Wraps an optimizer's rules for the weights whose
// products are in fp4.
//
// Keeps two states of 4 bytes for each such weight: how far the weight has moved in the current window, and
// how far its fp4 value has. The weights and values before a step are recomputed at its update. They need
// memory from the stash, which is empty by then: 4 bytes for each such weight of a unit's shard, and 4 for
// its values before and after. If a unit is sharded, it needs 2 more for each weight of the entire unit,
// which is gathered because squares of weights share scales. This memory is needed in every step from the
// first window on.
#pragma once

#include <cstdint>

#include "engine/precision.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OscillationSettings {
  std::int64_t start_step = 0;  // the first window begins after this step, or after step 1 if that is later
  std::int64_t period = 200;    // steps per window
  double ratio = 4;             // a weight oscillates if its fp4 value moves this many times as far as itself
  std::int64_t log_freq = 0;    // windows between log lines; 0: none

  std::int64_t steps_before() const { return start_step > 1 ? start_step : 1; }
  bool tracks(std::int64_t step) const { return step > steps_before(); }
  bool ends_window(std::int64_t step) const { return tracks(step) && (step - steps_before()) % period == 0; }
  // Whether a window that is logged ends with this step.
  bool reports(std::int64_t step) const {
    return log_freq > 0 && ends_window(step) && (step - steps_before()) / period % log_freq == 0;
  }
};

// Returns the rules, each preceded by a rule for its parameters whose products are in fp4, which does the
// same and stops oscillation.
UpdateRules without_oscillation(const UpdateRules& rules, const engine::PrecisionRecipe& recipe,
                                const OscillationSettings& settings);

}  // namespace primus
