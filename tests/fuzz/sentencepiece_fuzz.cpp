// Any bytes as a SentencePiece .model: an Error or a tokenizer that works.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "lm/tokenizer/sentencepiece/sentencepiece.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer =
        primus::make_sentencepiece_tokenizer(std::string(input), "fuzz.model", "SentencePieceTokenizer");
    // Its own bytes are a good mixture of its pieces and of none.
    for (const std::string_view text : {std::string_view(" ab  a\xC3\xA9\n1.\xFF"), input.substr(0, 200)}) {
      const auto ids = tokenizer->encode(text);
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) __builtin_trap();
      }
      const std::string decoded = tokenizer->decode(ids, false);
      primus::StreamDecoder stream(*tokenizer, false);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (streamed != decoded) __builtin_trap();
    }
  } catch (const primus::Error&) {
  }
  return 0;
}
