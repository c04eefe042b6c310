#include "lm/data/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "lm/tokenizer/json_reader.h"
#include "lm/tokenizer/unicode.h"

namespace primus::data {

JsonLines::JsonLines(std::vector<std::string> keys, bool skip_bad)
    : keys_(std::move(keys)), skip_bad_(skip_bad), texts_(keys_.size()) {}

void JsonLines::read(const TextBlock& block, std::string_view file,
                     FunctionRef<void(std::span<const JsonTexts>)> document) {
  skipped_ = 0;
  first_skipped_.clear();
  std::string_view rest = block.text;
  for (int64_t line = block.first_line; !rest.empty(); ++line) {
    const size_t newline = rest.find('\n');
    const std::string_view text = rest.substr(0, newline);
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      read_line(text, file, line);
    } catch (const Error& error) {
      if (!skip_bad_) throw;
      if (skipped_++ == 0) first_skipped_ = fmt::format("{}: {}", error.location(), error.what());
      continue;
    }
    document(texts_);
  }
}

void JsonLines::read_line(std::string_view text, std::string_view file, int64_t line) {
  unicode::require_valid(text, file, line);
  JsonReader reader(text, file, line);
  for (JsonTexts& texts : texts_) texts.found_ = false;
  if (reader.peek() != JsonReader::Kind::kObject) reader.fail("the line should hold an object");
  reader.begin_object();
  while (reader.next_key(key_)) {
    const auto known = std::find(keys_.begin(), keys_.end(), key_);
    if (known == keys_.end()) {
      reader.skip();
      continue;
    }
    JsonTexts& texts = texts_[static_cast<size_t>(known - keys_.begin())];
    texts.found_ = true;
    texts.count_ = 0;
    if (reader.peek() == JsonReader::Kind::kArray) {
      reader.begin_array();
      while (reader.next_element()) reader.read_string(texts.next());
    } else {
      reader.read_string(texts.next());
    }
  }
  reader.finish();
  for (size_t key = 0; key < texts_.size(); ++key) {
    if (texts_[key].found_) continue;
    throw invalid(fmt::format("the line has no key '{}'", keys_[key]),
                  "name the key that holds the text with --json-keys")
        .at(fmt::format("{}:{}", file, line));
  }
}

}  // namespace primus::data
