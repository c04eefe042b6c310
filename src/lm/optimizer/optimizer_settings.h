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
  // Whether the master weights of bf16 parameters are stored as the bf16 values plus 16 more bits
  // (turbo/master_weights.h). This option does not change the results of training.
  bool split_masters = false;
  // Whether weight decay also applies to norms and biases (never in Megatron-LM).
  bool decay_all_parameters = false;

  // Settings of without_oscillation(), which inserts update rules that stop oscillating weights. Empty: no
  // rules are inserted.
  std::optional<OscillationSettings> oscillation = {};

  // Reads the settings. Throws an Error at the location of a setting that the chosen optimizer does not
  // support.
  static OptimizerSettings from(const config::Experiment& experiment);
};

}  // namespace primus
