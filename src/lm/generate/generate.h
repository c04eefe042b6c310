// Writing on from a prompt.
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
  std::vector<std::int32_t> ids;  // what was written
  StopReason reason = StopReason::kMaxTokens;
  double prompt_seconds = 0, seconds = 0;  // reading the prompt; writing
};

// Gathers the tokens of a text as they come.
class TextWriter {
 public:
  void push(const DecodedToken& token);
  // Whoever looks on has ended the text.
  void stop() { text_.reason = StopReason::kCallback; }
  // As far as it has come.
  const Generation& text() const { return text_; }

 private:
  Generation text_;
  double written_from_ = 0;  // 0: nothing is written
};

// Writes on from `prompt` (at least one token). `on_token` sees each token at once and may end the text by
// returning false. Other texts of the decoder go on meanwhile.
Generation generate(DecodeScheduler& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token = {});

// The end of a prompt that leaves room to write `reserve` tokens, or half of the capacity where that is less.
std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve);

// Words to go on from, out of a text that may begin and end in the middle of a word: at most `most` whole
// ones, of the first sentence or line that begins within it, or else those behind its first blank. Empty: it
// has none.
std::string_view opening_words(std::string_view text, std::size_t most);

}  // namespace primus
