// Weights that oscillate between two numbers of fp4 while their masters hardly move end at one of them
// (weight_deosc; turbo/oscillation has the rule). It is added to an optimizer's rules for the weights whose
// products are in fp4.
//
// Two states of 4 bytes for each such weight: how far it has moved in the present window, and its number.
// What weights and numbers were before a step is found at its update, so neither is kept. That takes memory
// from the stash, which is empty then: 4 bytes for each such weight of a unit's shard, and 4 for its number
// before and after; where a unit is sharded, 2 more for each weight of the whole unit, which are gathered,
// for scales belong to squares of weights. All of it from the first window on, in every step.
#pragma once

#include <cstdint>

#include "engine/precision.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OscillationSettings {
  std::int64_t start_step = 0;  // the first window is of the steps behind it (or behind step 1)
  std::int64_t period = 200;    // steps of a window
  double ratio = 4;             // of the number's way to the weight's, from which on a weight oscillates
  std::int64_t log_freq = 0;    // windows between lines in the log; 0: none

  std::int64_t steps_before() const { return start_step > 1 ? start_step : 1; }
  bool tracks(std::int64_t step) const { return step > steps_before(); }
  bool ends_window(std::int64_t step) const { return tracks(step) && (step - steps_before()) % period == 0; }
  // Whether a window that is told of ends with this step.
  bool reports(std::int64_t step) const {
    return log_freq > 0 && ends_window(step) && (step - steps_before()) / period % log_freq == 0;
  }
};

// The rules, each behind one that takes those of its parameters whose products are in fp4, and does the same
// and this.
UpdateRules without_oscillation(const UpdateRules& rules, const engine::PrecisionRecipe& recipe,
                                const OscillationSettings& settings);

}  // namespace primus
