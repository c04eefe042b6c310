// Fuzzes SentencePiece models: any bytes give an Error or a working tokenizer.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "lm/tokenizer/sentencepiece/sentencepiece.h"
#include "quick.h"
#include "tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer =
        primus::make_sentencepiece_tokenizer(std::string(input), "fuzz.model", "SentencePieceTokenizer");
    use_tokenizer(*tokenizer, input);
  } catch (const primus::Error&) {
  }
  return 0;
}
