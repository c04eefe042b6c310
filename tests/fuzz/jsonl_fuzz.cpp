// Fuzzes JSON lines: any bytes give texts, or an Error with a location.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "lm/data/json_lines.h"
#include "lm/tokenizer/text/unicode.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Every broken line throws an exception, which is slow. A few broken lines reach the same code as many
  // lines.
  if (std::count(data, data + size, '\n') > 8) return -1;
  primus::data::TextBlock block;
  block.text.assign(reinterpret_cast<const char*>(data), size);
  uint64_t documents = 0;
  const auto check = [&documents](std::span<const primus::data::JsonTexts> keys) {
    ++documents;
    for (const std::string& text : keys.front().strings()) {
      if (!primus::unicode::is_valid(text)) __builtin_trap();
    }
  };
  primus::data::JsonLines skipping({"text"}, true, primus::data::command_hints("--json-keys"));
  skipping.read(block, "x.jsonl", check);
  const uint64_t good = documents;
  documents = 0;
  try {
    primus::data::JsonLines({"text"}, false, primus::data::command_hints("--json-keys"))
        .read(block, "x.jsonl", check);
    if (skipping.skipped() > 0 || documents != good) __builtin_trap();
  } catch (const primus::Error& error) {
    if (skipping.skipped() == 0 || error.location().empty()) __builtin_trap();
  }
  return 0;
}
