// regex:PATTERN: the answer has a match of a regular expression.
#include <memory>

#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/search_pattern.h"

namespace primus {
namespace {

std::unique_ptr<RewardFunction> make_regex(const RewardText& text, const RewardSettings&) {
  const auto pattern = std::make_shared<const SearchPattern>(text.argument);
  return make_answer_reward("regex", [pattern](const ScoredAnswer& answer) -> Reward {
    switch (pattern->find(after_thoughts(answer.completion))) {
      case SearchResult::kFound:
        return reward_if(true);
      case SearchResult::kMissing:
        return reward_if(false);
      case SearchResult::kLimit:
        break;
    }
    return {.value = {}, .problem = "the regular expression needs too many steps on this answer"};
  });
}

}  // namespace

extern const RewardEntry kRegexReward{"regex", "regex:PATTERN",
                                      "1 if the answer has a match of the regular expression", make_regex};

}  // namespace primus
