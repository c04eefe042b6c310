// The common part of rewards that compare an answer with a column of its record.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lm/reward/reward.h"

namespace primus {

// A function that returns the reward of one answer, given the text of the column.
using CompareWithColumn = std::function<Reward(const ScoredAnswer& answer, const std::string& expected)>;

// Returns a function that calls `compare` for each answer. An answer whose record has no text or number in
// `column` has no reward.
std::unique_ptr<RewardFunction> make_column_reward(std::string_view name, std::string column,
                                                   CompareWithColumn compare);

// Like make_column_reward, for rewards that read no column.
std::unique_ptr<RewardFunction> make_answer_reward(std::string_view name,
                                                   std::function<Reward(const ScoredAnswer& answer)> score);

// Returns the reward 1 or 0.
inline Reward reward_if(bool right) { return {.value = right ? 1.0 : 0.0}; }

}  // namespace primus
