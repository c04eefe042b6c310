// format:think: the completion is "<think>...</think>" and then an answer.
#include <fmt/format.h>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/reward_entry.h"

namespace primus {
namespace {

// Returns whether the completion begins with "<think>", has each tag once, and ends with a text that is not
// blank. Chat templates may write "<think>" as the end of the prompt.
bool is_thought_and_answer(const ScoredAnswer& answer) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  std::string_view text = trimmed(answer.completion);
  if (text.starts_with(kOpen)) {
    text.remove_prefix(kOpen.size());
  } else if (!trimmed(answer.prompt).ends_with(kOpen)) {
    return false;
  }
  const std::size_t close = text.find(kClose);
  if (close == std::string_view::npos || text.find(kOpen) != std::string_view::npos) return false;
  const std::string_view rest = text.substr(close + kClose.size());
  return rest.find(kClose) == std::string_view::npos && !trimmed(rest).empty();
}

std::unique_ptr<RewardFunction> make_format(const RewardText& text, const RewardSettings&) {
  if (text.argument != "think") {
    throw invalid(fmt::format("reward '{}': the format '{}' is unknown", printable(text.text),
                              printable(text.argument)),
                  "write format:think, or describe the format with regex:PATTERN");
  }
  return make_answer_reward(
      "format", [](const ScoredAnswer& answer) { return reward_if(is_thought_and_answer(answer)); });
}

}  // namespace

extern const RewardEntry kFormatReward{
    "format", "format:think", "1 if the completion is <think>...</think> and then an answer", make_format};

}  // namespace primus
