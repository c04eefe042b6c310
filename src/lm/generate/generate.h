// Generates a continuation of a prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lm/decode/scheduler.h"

namespace primus {

struct Generation {
  std::vector<std::int32_t> ids;  // generated tokens
  StopReason reason = StopReason::kMaxTokens;
  double prompt_seconds = 0, seconds = 0;  // seconds spent on reading the prompt, and seconds spent on
                                           // generating
};

// Collects the generated tokens of a text.
class TextWriter {
 public:
  void push(const DecodedToken& token);
  // Records that the callback has ended the text.
  void stop() { text_.reason = StopReason::kCallback; }
  // Returns the text generated so far.
  const Generation& text() const { return text_; }

 private:
  Generation text_;
  double written_from_ = 0;  // time of the first generated token; 0 until a token is generated
};

// Continues `prompt` (at least one token). Calls `on_token` as soon as a token is chosen. `on_token` may end
// the text by returning false. The decoder's other texts advance at the same time.
Generation generate(DecodeScheduler& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token = {});

// Returns the end of a prompt, shortened so that `reserve` new tokens fit into the capacity. If `reserve` is
// more than half of the capacity, only half of the capacity is kept free.
std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve);

// Returns words of `text` to use as a prompt: at most `maximum` complete words. `text` may begin and end
// within a word. The result starts with the first sentence or line that begins inside the text. Without such
// a sentence or line, the result starts after the first blank. Empty if the text has no complete word.
std::string_view opening_words(std::string_view text, std::size_t maximum);

}  // namespace primus
