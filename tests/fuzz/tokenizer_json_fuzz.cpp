// Fuzzes tokenizer.json: any bytes give an Error or a working tokenizer.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "lm/tokenizer/huggingface/huggingface.h"
#include "quick.h"
#include "tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  primus::HuggingFaceFiles files;
  files.tokenizer_json = input;
  try {
    const auto tokenizer = primus::make_huggingface_tokenizer(std::move(files), "HuggingFaceTokenizer");
    use_tokenizer(*tokenizer, input);
  } catch (const primus::Error&) {
  }
  return 0;
}
