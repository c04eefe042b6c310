// Reads the keys of PPO (stage ppo) into the settings of its loss rule (ppo_rule.h).
//
// Errors: Error(kInvalid) or Error(kUnsupported) at the key.
#pragma once

#include "config/experiment.h"
#include "lm/train/objectives/rules/ppo_rule.h"
#include "lm/train/step/session.h"

namespace primus {

PpoSettings ppo_settings_of(const config::Experiment& experiment);

// Throws for settings of a run on `world` ranks that PPO does not support: environments, fp8 and fp4,
// and mini-batches that do not divide the answers of a step.
void check_ppo_run(const config::Experiment& experiment, int world);
// Throws for models that PPO does not support: multi-token prediction.
void check_ppo_model(const config::Experiment& experiment, const ModelConfig& policy);
// Throws if the ranks of the run cannot divide the value model of value_load. `settings`: the run's settings.
void check_ppo_mesh(const config::Experiment& experiment, int world, const SessionSettings& settings);

// Returns the loss rule. The value model starts from value_load, or else from the start of the policy.
MakeLossRule ppo_rule_of(const config::Experiment& experiment);

}  // namespace primus
