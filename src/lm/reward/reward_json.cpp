#include "lm/reward/reward_json.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "base/text/json_reader.h"
#include "base/text/json_text.h"

namespace primus {

nlohmann::ordered_json answer_json(const ScoredAnswer& answer) {
  return {{"prompt", answer.prompt},
          {"completion", answer.completion},
          {"finished", answer.finished},
          {"record", *answer.record}};
}

Reward reward_of_json(const nlohmann::json& value, bool& is_reward) {
  is_reward = true;
  const nlohmann::json* number = &value;
  std::string reason = "the reward is null, without a reason";
  if (value.is_object()) {
    const auto found = value.find("reward");
    if (found != value.end()) number = &*found;
    const auto text = value.find("reason");
    if (text != value.end() && text->is_string()) reason = printable(excerpt(text->get<std::string>()));
  }
  if (number->is_null()) return {.value = {}, .problem = reason};
  if (number->is_number() && std::isfinite(number->get<double>())) return {.value = number->get<double>()};
  is_reward = false;
  return {.value = {},
          .problem = fmt::format("the reply is no reward: {}", printable(excerpt(json_text(value, -1))))};
}

Reward reward_of_text(std::string_view text, bool& is_reward) {
  const nlohmann::json value = bounded_json(text, is_reward);
  if (!is_reward) {
    return {.value = {}, .problem = fmt::format("the reply is no JSON: {}", printable(excerpt(text)))};
  }
  return reward_of_json(value, is_reward);
}

nlohmann::json bounded_json(std::string_view text, bool& is_json) {
  is_json = false;
  try {
    // The parser of nlohmann recurses when it destroys values, so JsonReader limits the nesting first.
    JsonReader reader(text, "reply");
    reader.skip();
    reader.finish();
  } catch (const Error&) {
    return nullptr;
  }
  auto value = nlohmann::json::parse(text, nullptr, false);
  is_json = !value.is_discarded();
  return value;
}

}  // namespace primus
