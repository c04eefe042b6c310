// Tests that no function of the program crashes or hangs on mutated answers.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "base/error.h"
#include "lm/reward/http_post.h"
#include "lm/reward/reward_json.h"
#include "reward_testing.h"

namespace primus {
namespace {

TEST(HostileAnswers, AThousandMutatedAnswersTakeBoundedTime) {
  const std::string seeds[] = {
      "<think>a</think>The answer is \\boxed{\\frac{1}{2}} or 1,000 #### 5",
      "```json\n{\"a\": [1, {\"b\": \"c\"}], \"d\": 1e5}\n```",
      "\\{(1,2), [3,4)\\} \\cup x^2 \\pm \\sqrt[3]{x+1} = \\sin(x) |y|! 50\\%",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
      "{\"reward\": 0.5, \"reason\": \"none\"}",
  };
  const nlohmann::json record = {
      {"answer", "\\frac{1}{2}"},
      {"schema", nlohmann::json::parse(R"({"properties":{"a":{"items":{"pattern":"^(a+)+$"}}}})")}};
  RewardSettings settings;
  settings.functions = {"exact:answer",  "number:answer", "math:answer", "schema:schema",
                        "regex:(a|b)*c", "format:think",  "length:100"};
  const auto functions = make_rewards(settings);
  std::mt19937 random(7);
  const auto pick = [&random](std::size_t count) { return random() % std::max<std::size_t>(count, 1); };
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    std::string text = seeds[pick(std::size(seeds))];
    for (std::size_t change = 0; change < 1 + pick(8); ++change) {
      const std::size_t at = pick(text.size());
      switch (pick(4)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, pick(8));
          break;
        case 2:
          text.insert(at, text.substr(pick(text.size()), pick(40)));
          break;
        default:
          text.insert(at, pick(50), text[at]);
      }
      if (text.empty()) text = "x";
    }
    const ScoredAnswer answer{.completion = text, .record = &record};
    for (const auto& function : functions) function->score({&answer, 1});
    bool is_reward = false;
    reward_of_text(text, is_reward);
    parse_http_reply(text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace primus
