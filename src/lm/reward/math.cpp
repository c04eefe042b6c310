// math:COLUMN: the answer's mathematical value equals the value of a column.
#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/math_expression.h"
#include "lm/reward/reward_entry.h"

namespace primus {
namespace {

// Returns the marked answer, else the last formula between $ signs, else the last line that is not blank.
std::string_view final_expression(std::string_view text) {
  if (const auto marked = marked_answer(text)) return *marked;
  if (const std::size_t close = text.rfind('$'); close != std::string_view::npos && close > 0) {
    const std::size_t open = text.rfind('$', close - 1);
    const bool formula =
        open != std::string_view::npos && !trimmed(text.substr(open + 1, close - open - 1)).empty();
    if (formula) return trimmed(text.substr(open + 1, close - open - 1));
  }
  const std::string_view lines = trimmed(text);
  return trimmed(lines.substr(lines.rfind('\n') + 1));
}

std::unique_ptr<RewardFunction> make_math(const RewardText& text, const RewardSettings&) {
  return make_column_reward(
      "math", text.argument, [](const ScoredAnswer& answer, const std::string& expected) -> Reward {
        const std::string_view right = final_expression(expected);
        if (right.empty()) return {.value = {}, .problem = "the column has no answer"};
        return reward_if(equal_math(final_expression(after_thoughts(answer.completion)), right));
      });
}

}  // namespace

extern const RewardEntry kMathReward{
    "math", "math:COLUMN", "1 if the answer's expression equals the column's expression", make_math};

}  // namespace primus
