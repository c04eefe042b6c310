#include "lm/data/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/text/json_reader.h"
#include "base/text/suggest.h"
#include "lm/data/text_check.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::data {

namespace {

// Returns "'a', 'b'", at most eight keys, or "none".
std::string names_of(std::span<const std::string> keys) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (const std::string& key : keys.first(std::min(keys.size(), kShown)))
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", key);
  return keys.empty() ? "none" : keys.size() > kShown ? text + " ..." : text;
}

}  // namespace

Error missing_key(std::string_view line, std::string_view key) {
  std::vector<std::string> there;
  std::string other;
  JsonReader reader(line, "", {.python = true});
  reader.begin_object();
  for (; reader.next_key(other); reader.skip()) there.push_back(other);
  return invalid(fmt::format("the line has no key '{}'; it has {}", key, names_of(there)));
}

std::string null_keys(const UniqueKeys& there, std::span<const std::string_view> keys) {
  std::string text;
  for (const std::string& key : there.first()) {
    if (std::ranges::find(keys, key) != keys.end())
      text += fmt::format("{}'{}'", text.empty() ? "; null: " : ", ", key);
  }
  return text;
}

namespace {

// Returns up to 64 KiB from the beginning of a text file. nullopt: the file is a pipe, which is read only
// once, or is compressed, or is not plain text.
std::optional<std::string> beginning_of(const InputFile& file) {
  constexpr std::size_t kBeginning = 64 << 10;
  if (file.kind != InputKind::kText || file.compression != Compression::kNone) return std::nullopt;
  if (!std::filesystem::is_regular_file(file.path)) return std::nullopt;
  std::string text(kBeginning, '\0');
  text.resize(Env::posix()
                  .open(file.path, OpenMode::kRead)
                  ->read_at(std::as_writable_bytes(std::span(text.data(), text.size())), 0));
  return text;
}

// Returns whether the first line of a text is a JSON object. `text`: up to 64 KiB.
bool begins_with_json(std::string text) {
  constexpr std::size_t kWhole = 32 << 10;  // a text that is shorter is complete
  text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::size_t end = text.find('\n');
  const bool whole = end != std::string::npos || text.size() < kWhole;
  return text.starts_with('{') && whole && nlohmann::json::accept(text.substr(0, end));
}

// The first of some files, and their number.
struct Found {
  const InputFile* first = nullptr;
  int count = 0;

  void add(const InputFile& file) {
    if (count++ == 0) first = &file;
  }
  // Returns "'a.txt'ONE" or "'a.txt' and 2 moreMANY".
  std::string names(std::string_view one, std::string_view many) const {
    return count == 1 ? fmt::format("'{}'{}", first->path.string(), one)
                      : fmt::format("'{}' and {} more{}", first->path.string(), count - 1, many);
  }
};

}  // namespace

std::vector<std::string> remarks_on_content(const std::vector<InputFile>& files) {
  constexpr int kMostFiles = 100;
  Found json, windows;
  int opened = 0;
  for (const InputFile& file : files) {
    const std::optional<std::string> text = beginning_of(file);
    if (!text) continue;
    if (++opened > kMostFiles) break;
    if (begins_with_json(*text)) json.add(file);
    if (text->find("\r\n") != std::string::npos) windows.add(file);
  }
  std::vector<std::string> remarks;
  if (json.count > 0) {
    remarks.push_back(json.names(" is a file", " are files") +
                      " of JSON lines, but read as plain text, with the JSON syntax, because of the file "
                      "name: names of JSON "
                      "lines end in .jsonl");
  }
  if (windows.count > 0) {
    remarks.push_back(
        windows.names(" has", " have") +
        " the line ends of Windows (CR LF), and the model learns both characters; sed -i 's/\\r$//' "
        "FILE removes the CR");
  }
  return remarks;
}

void refuse_missing_key(const JsonReader& json, const std::string& what, const UniqueKeys& there,
                        std::span<const std::string_view> wanted, std::string next) {
  const std::span<const std::string> keys = there.first();
  for (const std::string& key : keys) {
    const std::string_view near = closest(key, wanted);
    if (!near.empty() && near != key)
      next = fmt::format("the record has '{}' where it may mean '{}'", key, near);
  }
  try {
    json.refuse(fmt::format("{}; it has {}", what, names_of(keys)));
  } catch (Error& error) {
    if (!next.empty()) error.add_hint(next);
    throw;
  }
}

namespace {

// Returns whether the file seems to be a single JSON value: a list of all objects, or an object that spans
// several lines.
bool begins_one_value(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
  return line[begin] == '[' || (line[begin] == '{' && begin == end);
}

// Returns whether the object has a key under which conversation data sets store the turns.
bool is_conversation(std::string_view line) {
  std::string key;
  JsonReader reader(line, "", {.python = true});
  reader.begin_object();
  for (; reader.next_key(key); reader.skip()) {
    if (key == "messages" || key == "conversations") return true;
  }
  return false;
}

}  // namespace

JsonLines::JsonLines(std::vector<std::string> keys, bool skip_bad, ReaderHints hints)
    : keys_(std::move(keys)), skip_bad_(skip_bad), hints_(std::move(hints)), texts_(keys_.size()) {}

void JsonLines::read(const TextBlock& block, std::string_view file,
                     FunctionRef<void(std::span<const JsonTexts>)> document) {
  skipped_ = 0;
  first_skipped_.clear();
  if (block.begins_file) refuse_other_content(block.text, file, block.first_line, true);
  std::string_view rest = block.text;
  if (block.begins_file && rest.starts_with(unicode::kByteOrderMark))
    rest.remove_prefix(unicode::kByteOrderMark.size());
  for (std::int64_t line = block.first_line; !rest.empty(); ++line) {
    const std::size_t newline = rest.find('\n');
    const std::string_view text = rest.substr(0, newline);
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      read_line(text, file, line);
    } catch (Error& error) {
      if (!skip_bad_) {
        throw error.add_hint(begins_one_value(text)
                                 ? "each line must hold one whole JSON object: 'jq -c .' writes each object "
                                   "of a file on one line, 'jq -c .[]' each element of a list"
                                 : hints_.skip_bad);
      }
      if (skipped_++ == 0) first_skipped_ = fmt::format("{}: {}", error.location(), error.what());
      continue;
    }
    try {
      document(texts_);
    } catch (Error& error) {  // a tokenizer may refuse some texts
      if (error.location().empty()) error.at(fmt::format("{}:{}", file, line));
      throw;
    }
  }
}

void JsonLines::read_line(std::string_view text, std::string_view file, std::int64_t line) {
  unicode::require_valid(text, file, line);
  JsonReader reader(text, file, {.first_line = line, .python = true});
  for (JsonTexts& texts : texts_) texts.found_ = false;
  reader.require(JsonReader::Kind::kObject, "the line");
  unique_.clear();
  reader.begin_object();
  while (reader.next_key(key_)) {
    unique_.add(reader, key_);
    const auto known = std::find(keys_.begin(), keys_.end(), key_);
    if (known == keys_.end()) {
      reader.skip();
      continue;
    }
    JsonTexts& texts = texts_[static_cast<std::size_t>(known - keys_.begin())];
    texts.found_ = true;
    texts.count_ = 0;
    if (reader.peek() == JsonReader::Kind::kArray) {
      reader.begin_array();
      while (reader.next_element()) {
        reader.require(JsonReader::Kind::kString, "an element of", key_);
        reader.read_string(texts.next());
      }
    } else {
      reader.require(JsonReader::Kind::kString, "the value of", key_);
      reader.read_string(texts.next());
    }
  }
  reader.finish();
  for (std::size_t key = 0; key < texts_.size(); ++key) {
    if (texts_[key].found_) continue;
    throw missing_key(text, keys_[key])
        .add_hint(is_conversation(text) ? hints_.conversations : hints_.json_key)
        .at(fmt::format("{}:{}", file, line));
  }
}

}  // namespace primus::data
