// What a tokenizer must do with any text, whatever file it was made from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

// `file`: the bytes that it was made from, a good mixture of its tokens and of none. Traps where an id is out
// of range, or where a decoder of single tokens differs from one of all.
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
