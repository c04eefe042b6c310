// An experiment's optimizer settings. Plain values.
#pragma once

#include <optional>

#include "config/experiment.h"
#include "lm/optimizer/oscillation.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

struct OptimizerSettings {
  UpdateRules rules = default_update_rules();
  double clip_norm = 1.0;  // max norm of the complete gradient; 0: no clipping
  // Whether masters of bf16 parameters are stored as the bf16 values plus 16 more bits
  // (turbo/master_weights.h). This does not change the results of training.
  bool split_masters = false;
  // Whether norms and biases are decayed too; Megatron-LM does not decay them.
  bool decay_all_parameters = false;

  // Settings of the wrapper around `rules` that stops oscillating weights (without_oscillation). Empty: no
  // wrapper.
  std::optional<OscillationSettings> oscillation = {};

  // Throws an Error at the key's place for settings that the chosen optimizer does not support.
  static OptimizerSettings from(const config::Experiment& experiment);
};

}  // namespace primus
