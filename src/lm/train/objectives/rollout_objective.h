// The objectives that learn from rewards for the model's own answers: stages grpo, rloo and ppo.
// prompt_dataset.h reads their prompts, rollout_rule.h generates and scores the answers, and policy_rule.h
// computes the losses.
#pragma once

#include <memory>

#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/rules/policy_settings.h"

namespace primus {

std::unique_ptr<Objective> make_rollout_objective(PolicyMethod method);

}  // namespace primus
