// Checks a tokenizer, read from any file format, with text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

// `file` has the bytes of the tokenizer's file: tokens mixed with other text. Traps if an id is out of range,
// or if decoding token by token differs from decoding all tokens.
inline void use_tokenizer(const primus::Tokenizer& tokenizer, std::string_view file) {
  for (const std::string_view text : {std::string_view(" ab  a\xC3\xA9\n1.\xFF"), file.substr(0, 200)}) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
    }
    const std::string decoded = tokenizer.decode(ids, false);
    primus::StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    if (streamed != decoded) __builtin_trap();
  }
}
