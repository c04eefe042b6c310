// length:MAX[,CACHE]: a penalty for long answers (DAPO, arXiv 2503.14476, equation 13).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/reward_entry.h"

namespace primus {
namespace {

constexpr std::int64_t kMaxLength = std::int64_t{1} << 32;

std::int64_t count_of(std::string_view digits, std::int64_t minimum, const RewardText& text) {
  std::int64_t count = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size() || count < minimum ||
      count > kMaxLength) {
    throw invalid(fmt::format("reward '{}': '{}' is no number of tokens from {} to {}", printable(text.text),
                              printable(std::string(digits)), minimum, kMaxLength),
                  "write length:MAX or length:MAX,CACHE, for example length:20480,4096");
  }
  return count;
}

std::unique_ptr<RewardFunction> make_length(const RewardText& text, const RewardSettings&) {
  const std::string_view argument = text.argument;
  const std::size_t comma = argument.find(',');
  const std::int64_t max = count_of(argument.substr(0, comma), 1, text);
  const std::int64_t cache =
      comma == std::string_view::npos ? 0 : count_of(argument.substr(comma + 1), 0, text);
  if (cache > max) {
    throw invalid(fmt::format("reward '{}': CACHE is greater than MAX", printable(text.text)),
                  "write length:MAX,CACHE, for example length:20480,4096");
  }
  return make_answer_reward("length", [max, cache](const ScoredAnswer& answer) -> Reward {
    if (answer.tokens < 0)
      return {.value = {},
              .problem =
                  "the number of tokens of the answer is unknown; give 'data score' the option --tokenizer"};
    if (answer.tokens > max) return {.value = -1};
    const std::int64_t over = std::max<std::int64_t>(answer.tokens - (max - cache), 0);
    return {.value = over == 0 ? 0 : -static_cast<double>(over) / static_cast<double>(cache)};
  });
}

}  // namespace

extern const RewardEntry kLengthReward{
    "length", "length:MAX[,CACHE]",
    "0 up to MAX - CACHE tokens, from there linearly to -1 at MAX tokens, -1 for longer answers",
    make_length};

}  // namespace primus
