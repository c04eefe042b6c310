#include "lm/generate/generate.h"

#include <algorithm>

#include "base/terminal.h"

namespace primus {

Generation generate(TokenReader& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token) {
  settings.sampling.check();
  const std::int64_t vocab =
      settings.vocab > 0 ? std::min(settings.vocab, decoder.config().vocab) : decoder.config().vocab;
  Generation result;
  const double start = steady_seconds();
  std::span<const float> logits = decoder.read(prompt);
  const double written_from = steady_seconds();
  result.prompt_seconds = written_from - start;
  while (true) {
    if (static_cast<std::int64_t>(result.ids.size()) >= settings.max_tokens) {
      result.reason = StopReason::kMaxTokens;
      break;
    }
    const std::int32_t id =
        sample_token(logits.first(static_cast<std::size_t>(vocab)), settings.sampling, decoder.length());
    if (std::find(settings.stop_ids.begin(), settings.stop_ids.end(), id) != settings.stop_ids.end()) {
      result.reason = StopReason::kStopToken;
      break;
    }
    result.ids.push_back(id);
    if (on_token && !on_token(id)) {
      result.reason = StopReason::kCallback;
      break;
    }
    if (decoder.length() == decoder.capacity()) {
      result.reason = StopReason::kContextFull;
      break;
    }
    if (static_cast<std::int64_t>(result.ids.size()) < settings.max_tokens) logits = decoder.read({&id, 1});
  }
  result.seconds = steady_seconds() - written_from;
  return result;
}

std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve) {
  const std::int64_t room = std::max<std::int64_t>(1, capacity - std::min(reserve, capacity / 2));
  const auto kept = static_cast<std::size_t>(room);
  return prompt.size() > kept ? prompt.last(kept) : prompt;
}

}  // namespace primus
