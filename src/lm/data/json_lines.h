// Texts in JSON lines: one object per line; selected keys hold a text or a list of texts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/system/thread_pool.h"
#include "base/text/json_reader.h"
#include "base/text/unique_keys.h"
#include "lm/data/corpus.h"

namespace primus::data {

// The texts of one key in one line. Memory is reused for later lines.
class JsonTexts {
 public:
  std::span<const std::string> strings() const { return std::span(strings_).first(count_); }

 private:
  friend class JsonLines;
  std::string& next() {
    if (count_ == strings_.size()) strings_.emplace_back();
    return strings_[count_++];
  }
  bool found_ = false;
  std::size_t count_ = 0;
  std::vector<std::string> strings_;
};

// Returns an Error(kInvalid), without a file position, for an object that lacks `key`; the message lists the
// object's keys.
Error missing_key(std::string_view line, std::string_view key);

// Throws Error(kInvalid) at the reader's position for a record that lacks a key. The message is `what` and
// the record's keys. The hint is `next` or, if a key of the record is close to one of the `wanted` keys, "did
// you mean". `there`: the keys of the record.
[[noreturn]] void refuse_missing_key(const JsonReader& json, const std::string& what, const UniqueKeys& there,
                                     std::span<const std::string_view> wanted, std::string next = {});

// Returns "; null: 'a', 'b'" for the keys of `keys` that the record has, and "" if it has none. For a message
// about keys whose values must not be null.
std::string null_keys(const UniqueKeys& there, std::span<const std::string_view> keys);

// Returns notes about files of plain text that begin with a line of JSON, and about files with Windows line
// ends. Reads the beginning of at most 100 files.
std::vector<std::string> remarks_on_content(const std::vector<InputFile>& files);

// Reads blocks of JSON lines. Not thread-safe: each worker needs its own object.
class JsonLines {
 public:
  JsonLines(std::vector<std::string> keys, bool skip_bad, ReaderHints hints);

  // Calls document(texts of each key) for every line of the block that is not blank. Throws Error(kInvalid)
  // at "file:line:column" for a line that is not UTF-8 or not a JSON object, has a key twice, lacks a key, or
  // has a key whose value is not text. (A value with an unpaired surrogate is not text.) With skip_bad, such
  // lines are skipped. A byte-order mark at the start of the file is ignored, as RFC 8259 allows.
  void read(const TextBlock& block, std::string_view file,
            FunctionRef<void(std::span<const JsonTexts>)> document);

  // Return the number of lines skipped in the last block, and the reason for the first skipped line.
  std::uint64_t skipped() const { return skipped_; }
  const std::string& first_skipped() const { return first_skipped_; }

 private:
  void read_line(std::string_view text, std::string_view file, std::int64_t line);

  std::vector<std::string> keys_;
  bool skip_bad_;
  ReaderHints hints_;
  std::vector<JsonTexts> texts_;  // texts of each key
  std::string key_;
  UniqueKeys unique_;
  std::uint64_t skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace primus::data
