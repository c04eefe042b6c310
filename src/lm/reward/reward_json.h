// Answers and rewards as JSON, for programs and servers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lm/reward/reward.h"

namespace primus {

// Returns {"prompt": ..., "completion": ..., "finished": true, "record": {...}}.
nlohmann::ordered_json answer_json(const ScoredAnswer& answer);

// Parses untrusted text as JSON, with limited nesting. Sets `is_json` to false if the text is no JSON.
nlohmann::json bounded_json(std::string_view text, bool& is_json);

// Returns the reward that a number, null, or an object {"reward": number or null, "reason": "..."} describes.
// Sets `is_reward` to false, and describes the problem, for any other value.
Reward reward_of_json(const nlohmann::json& value, bool& is_reward);
// Like reward_of_json(), for a value as JSON text. `is_reward` is false if the text is not JSON.
Reward reward_of_text(std::string_view text, bool& is_reward);

}  // namespace primus
