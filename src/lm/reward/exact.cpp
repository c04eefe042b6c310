// exact:COLUMN: the answer's text equals a column.
#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/reward_entry.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {
namespace {

// Returns the text in lower case and Unicode's form NFC, with one space for each run of white space.
std::string comparable(std::string_view text) {
  std::string valid, result;
  for (const char c : unicode::lowercase(
           unicode::normalize(unicode::valid_or_repaired(trimmed(text), valid), unicode::Form::kNfc))) {
    const bool space = std::string_view(" \t\r\n\f\v").find(c) != std::string_view::npos;
    if (!space) {
      result += c;
    } else if (!result.ends_with(' ')) {
      result += ' ';
    }
  }
  return result;
}

std::unique_ptr<RewardFunction> make_exact(const RewardText& text, const RewardSettings&) {
  return make_column_reward(
      "exact", text.argument, [](const ScoredAnswer& answer, const std::string& expected) {
        return reward_if(comparable(after_thoughts(answer.completion)) == comparable(expected));
      });
}

}  // namespace

extern const RewardEntry kExactReward{"exact", "exact:COLUMN",
                                      "1 if the answer is the column's text, ignoring case and white space",
                                      make_exact};

}  // namespace primus
