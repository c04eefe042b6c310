#include "lm/generate/generate.h"

#include <algorithm>

#include "base/terminal/terminal.h"

namespace primus {

void TextWriter::push(const DecodedToken& token) {
  const double now = steady_seconds();
  if (written_from_ == 0) {
    written_from_ = now;
    text_.prompt_seconds = now - token.began;
  }
  text_.seconds = now - written_from_;
  if (token.id >= 0 && token.end != StopReason::kStopToken) text_.ids.push_back(token.id);
  if (token.end) text_.reason = *token.end;
}

Generation generate(DecodeScheduler& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token) {
  TextWriter writer;
  bool over = false;
  const auto push = [&](const DecodedToken& token) {
    const std::size_t before = writer.text().ids.size();
    writer.push(token);
    bool more = true;
    if (on_token && writer.text().ids.size() > before) more = on_token(token.id);
    over = token.end || !more;
    if (!more) writer.stop();
    return more;
  };
  const DecodeScheduler::Id id =
      decoder.submit({.prompt = {prompt.begin(), prompt.end()}, .settings = settings, .on_token = push});
  try {
    while (!over) decoder.step();
  } catch (...) {
    decoder.cancel(id);
    throw;
  }
  return writer.text();
}

std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve) {
  const std::int64_t room = std::max<std::int64_t>(1, capacity - std::min(reserve, capacity / 2));
  const auto kept = static_cast<std::size_t>(room);
  return prompt.size() > kept ? prompt.last(kept) : prompt;
}

std::string_view opening_words(std::string_view text, std::size_t maximum) {
  constexpr std::string_view kBlanks = " \t\r\n";
  constexpr std::size_t kEnough = 3;
  // Returns the words after `begin` that are followed by a blank, and sets `words` to their number.
  const auto words_at = [&](std::size_t begin, std::size_t& words) {
    std::size_t end = begin;
    words = 0;
    for (std::size_t at = begin; words < maximum;) {
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
    if ((line || sentence) && words >= std::min(kEnough, maximum)) return found;
    if (behind_first_blank.empty()) behind_first_blank = found;
    at = begin;
  }
  return behind_first_blank;
}

}  // namespace primus
