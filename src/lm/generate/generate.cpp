#include "lm/generate/generate.h"

#include <algorithm>

#include "base/terminal/terminal.h"

namespace primus {

std::optional<std::int32_t> TextWriter::end(StopReason reason) {
  text_.reason = reason;
  return {};
}

std::optional<std::int32_t> TextWriter::next(NextLogits logits, std::int64_t length, std::int64_t capacity,
                                             const std::function<bool(std::int32_t)>& on_token) {
  const auto written = [&] { return static_cast<std::int64_t>(text_.ids.size()); };
  if (written() >= settings_.max_tokens) return end(StopReason::kMaxTokens);
  if (settings_.vocab > 0 && logits.ids.empty())
    logits.values =
        logits.values.first(std::min(logits.values.size(), static_cast<std::size_t>(settings_.vocab)));
  const std::int32_t id = sample_token(logits, settings_.sampling, length);
  const std::vector<std::int32_t>& stops = settings_.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return end(StopReason::kStopToken);
  text_.ids.push_back(id);
  if (on_token && !on_token(id)) return end(StopReason::kCallback);
  if (length == capacity) return end(StopReason::kContextFull);
  if (written() >= settings_.max_tokens) return end(StopReason::kMaxTokens);
  return id;
}

Generation generate(TokenReader& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token,
                    const std::function<void(std::span<const std::int32_t>)>& on_read) {
  settings.sampling.check();
  TextWriter writer(settings);
  const auto read = [&](std::span<const std::int32_t> tokens) {
    if (on_read) on_read(tokens);
    return decoder.read(tokens, settings.wanted());
  };
  const double start = steady_seconds();
  NextLogits logits = read(prompt);
  const double written_from = steady_seconds();
  while (const auto id = writer.next(logits, decoder.length(), decoder.capacity(), on_token))
    logits = read({&*id, 1});
  Generation result = std::move(writer.text());
  result.prompt_seconds = written_from - start;
  result.seconds = steady_seconds() - written_from;
  return result;
}

std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve) {
  const std::int64_t room = std::max<std::int64_t>(1, capacity - std::min(reserve, capacity / 2));
  const auto kept = static_cast<std::size_t>(room);
  return prompt.size() > kept ? prompt.last(kept) : prompt;
}

std::string_view opening_words(std::string_view text, std::size_t most) {
  constexpr std::string_view kBlanks = " \t\r\n";
  constexpr std::size_t kEnough = 3;
  // Words that begin at `begin`, each with a blank behind it; how many.
  const auto words_at = [&](std::size_t begin, std::size_t& words) {
    std::size_t end = begin;
    words = 0;
    for (std::size_t at = begin; words < most;) {
      const std::size_t blank = text.find_first_of(kBlanks, at);
      if (blank == std::string_view::npos) break;
      end = blank;
      ++words;
      at = text.find_first_not_of(kBlanks, blank);
      if (at == std::string_view::npos) break;
    }
    return text.substr(begin, end - begin);
  };
  std::string_view behind_first_blank;
  for (std::size_t at = text.find_first_of(kBlanks); at != std::string_view::npos;
       at = text.find_first_of(kBlanks, at)) {
    const std::size_t begin = text.find_first_not_of(kBlanks, at);
    if (begin == std::string_view::npos) break;
    const bool line = text.substr(at, begin - at).find('\n') != std::string_view::npos;
    const bool sentence = at > 0 && std::string_view(".!?").find(text[at - 1]) != std::string_view::npos;
    std::size_t words = 0;
    const std::string_view found = words_at(begin, words);
    if ((line || sentence) && words >= std::min(kEnough, most)) return found;
    if (behind_first_blank.empty()) behind_first_blank = found;
    at = begin;
  }
  return behind_first_blank;
}

}  // namespace primus
