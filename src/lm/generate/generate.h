// Writing on from a prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lm/generate/sampler.h"
#include "lm/generate/token_reader.h"

namespace primus {

struct GenerateSettings {
  SamplingSettings sampling = {};
  std::int64_t max_tokens = 128;
  std::int64_t vocab = 0;                   // ids that may be chosen: the tokenizer's size; 0: the model's
  std::vector<std::int32_t> stop_ids = {};  // end the text; not part of it

  // What a reader has to tell so that a token can be chosen.
  WantedLogits wanted() const { return {likeliest_needed(sampling), vocab}; }
};

enum class StopReason : std::uint8_t {
  kStopToken,
  kMaxTokens,
  kContextFull,  // the decoder's capacity is used up
  kCallback,
};

struct Generation {
  std::vector<std::int32_t> ids;  // what was written
  StopReason reason = StopReason::kMaxTokens;
  double prompt_seconds = 0, seconds = 0;  // reading the prompt; writing
};

// Reads `prompt` (at least one token) behind what the decoder holds, then writes. `on_token` sees each token
// at once and may end the text by returning false. The last token written has not been read by the decoder:
// whoever goes on reads it first. `on_read` sees what the decoder is about to read.
Generation generate(TokenReader& decoder, std::span<const std::int32_t> prompt,
                    const GenerateSettings& settings, const std::function<bool(std::int32_t)>& on_token = {},
                    const std::function<void(std::span<const std::int32_t>)>& on_read = {});

// One text as it is written: chooses its tokens and knows when it is over. `settings` must outlive it.
class TextWriter {
 public:
  explicit TextWriter(const GenerateSettings& settings) : settings_(settings) {}

  // The token after what has been read, `length` tokens of at most `capacity`, given its logits; nothing when
  // the text is over. That token has to be read next.
  std::optional<std::int32_t> next(NextLogits logits, std::int64_t length, std::int64_t capacity,
                                   const std::function<bool(std::int32_t)>& on_token = {});
  const Generation& text() const { return text_; }
  Generation& text() { return text_; }

 private:
  std::optional<std::int32_t> end(StopReason reason);

  const GenerateSettings& settings_;
  Generation text_;
};

// The end of a prompt that leaves room to write `reserve` tokens, or half of the capacity where that is less.
std::span<const std::int32_t> fit_prompt(std::span<const std::int32_t> prompt, std::int64_t capacity,
                                         std::int64_t reserve);

// Words to go on from, out of a text that may begin and end in the middle of a word: at most `most` whole
// ones, of the first sentence or line that begins within it, or else those behind its first blank. Empty: it
// has none.
std::string_view opening_words(std::string_view text, std::size_t most);

}  // namespace primus
