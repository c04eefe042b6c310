// Helpers of the tests of rewards.
#pragma once

#include <string>

#include "lm/reward/reward.h"

namespace primus {

// Scores one answer with one function.
inline Reward score_one(const std::string& function, const std::string& completion,
                        const nlohmann::json& record, RewardSettings settings = {}) {
  settings.functions = {function};
  const ScoredAnswer answer{.prompt = "p", .completion = completion, .record = &record};
  return make_rewards(settings).front()->score({&answer, 1}).front();
}

// Returns the reward, or -99 if the answer has none.
inline double value_of(const Reward& reward) { return reward.value.value_or(-99); }

}  // namespace primus
