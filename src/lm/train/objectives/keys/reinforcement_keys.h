// Reads the keys of reinforcement learning (stages grpo, rloo and ppo) into the settings of its parts. Keys
// that have no effect in the stage are not passed on.
//
// Errors: Error(kInvalid) at the key.
#pragma once

#include <cstdint>
#include <string>

#include "config/experiment.h"
#include "lm/data/prompt_dataset.h"
#include "lm/decode/sampler.h"
#include "lm/reward/environment.h"
#include "lm/reward/reward.h"
#include "lm/train/objectives/rules/advantages.h"
#include "lm/train/objectives/rules/policy_settings.h"

namespace primus {

PolicySettings policy_settings_of(const config::Experiment& experiment, PolicyMethod method);
AdvantageSettings advantage_settings_of(const config::Experiment& experiment, PolicyMethod method);
// Returns how answers are generated. The seed is the seed of the run.
SamplingSettings sampling_settings_of(const config::TrainerConfig& trainer);
RewardSettings reward_settings_of(const config::Experiment& experiment);
// Requires the key environment.
EnvironmentSettings environment_settings_of(const config::TrainerConfig& trainer);
// Returns the text of the file of the key tools; empty without the key.
std::string tools_of(const config::Experiment& experiment);
// Returns the options for reading the prompts. If the key max_prompt_length is not set, the option is the
// sequence length minus the longest answer. Leaves out the tools.
data::PromptOptions prompt_options_of(const config::TrainerConfig& trainer);
// Returns the number of consecutive steps that learn from the same generated answers: 1 in stages that
// generate none.
std::int64_t steps_of_answers(const config::TrainerConfig& trainer);

}  // namespace primus
