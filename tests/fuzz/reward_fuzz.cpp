// Fuzzes rewards: the answer, the expected answer, and the reply of a server or a program may be any bytes.
#include <cstdint>
#include <string>

#include "lm/reward/http_post.h"
#include "lm/reward/math_expression.h"
#include "lm/reward/number_text.h"
#include "lm/reward/reward.h"
#include "lm/reward/reward_json.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t half = text.find('\0') == std::string::npos ? size / 2 : text.find('\0');
  const std::string answer = text.substr(0, half), expected = text.substr(half);
  primus::equal_math(answer, expected);
  primus::answer_number(answer);
  primus::parse_http_reply(text);
  bool is_reward = false;
  primus::reward_of_text(text, is_reward);
  static const auto functions = [] {
    primus::RewardSettings settings;
    settings.functions = {"exact:answer", "number:answer", "math:answer", "schema:schema", "format:think"};
    return primus::make_rewards(settings);
  }();
  const nlohmann::json record = {{"answer", expected}, {"schema", expected}};
  const primus::ScoredAnswer scored{.prompt = "", .completion = answer, .record = &record};
  for (const auto& function : functions) function->score({&scored, 1});
  return 0;
}
