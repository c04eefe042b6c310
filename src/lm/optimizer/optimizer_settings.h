// What an experiment says of its optimizer. Plain values.
#pragma once

#include <optional>

#include "config/experiment.h"
#include "lm/optimizer/oscillation.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OptimizerSettings {
  UpdateRules rules = update_rules_of({});  // AdamW, with the keys' defaults
  double clip_norm = 1.0;                   // of the whole gradient; 0: no clipping
  // Of bf16 parameters: the masters are the values and 16 bits beside them (turbo/master_weights.h). The same
  // numbers either way.
  bool split_masters = false;
  bool decay_all_parameters = false;  // false, as Megatron: norms and biases are not decayed

  // What `rules` do about weights that oscillate (without_oscillation); none: nothing.
  std::optional<OscillationSettings> oscillation = {};

  // Throws an Error, at the place of the key, for what the chosen optimizer cannot do.
  static OptimizerSettings from(const config::Experiment& experiment);
};

}  // namespace primus
