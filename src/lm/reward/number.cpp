// number:COLUMN: the answer's number equals the number in a column.
#include <fmt/format.h>

#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/number_text.h"
#include "lm/reward/reward_entry.h"

namespace primus {
namespace {

std::unique_ptr<RewardFunction> make_number(const RewardText& text, const RewardSettings&) {
  return make_column_reward(
      "number", text.argument,
      [column = text.argument](const ScoredAnswer& answer, const std::string& expected) -> Reward {
        const auto right = answer_number(expected);
        if (!right) {
          return {.value = {},
                  .problem = fmt::format("the column '{}' has no number: {}", printable(column),
                                         printable(excerpt(expected)))};
        }
        const auto found = answer_number(after_thoughts(answer.completion));
        return reward_if(found && equal_numbers(*found, *right));
      });
}

}  // namespace

extern const RewardEntry kNumberReward{"number", "number:COLUMN",
                                       "1 if the answer's last or marked number equals the column's number",
                                       make_number};

}  // namespace primus
