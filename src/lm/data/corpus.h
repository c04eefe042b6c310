// Text as it comes: finds the files a user means, and reads them in blocks of whole lines or paragraphs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus::data {

enum class InputKind { kText, kJsonLines };
enum class Compression { kNone, kGzip, kZstd };

struct InputFile {
  Path path;
  InputKind kind = InputKind::kText;
  Compression compression = Compression::kNone;
  std::uint64_t size = 0;    // bytes on disk
  bool known_ending = true;  // its name says what it holds
};

// The files of folders that are passed over because of their endings.
struct SkippedFiles {
  Path folder;                                 // the first folder that has some
  std::map<std::string, std::int64_t> counts;  // by ending: ".py"; "" where there is none
};

// The files that `patterns` name: files, folders (all text and JSON-lines files below them), globs ("**" for
// a folder and all below it); in order, those of a folder or glob sorted. .jsonl, .json and .ndjson hold one
// JSON value a line; anything else named is text; .gz and .zst behind either are unpacked. The case of an
// ending does not matter. Error(kInvalid) for a pattern that names nothing, kUnsupported for Parquet and
// archives.
std::vector<InputFile> find_inputs(const std::vector<std::string>& patterns, SkippedFiles* skipped = nullptr);
// For the user: which files are read as text though their endings do not say so, and how many files of
// folders are not read.
std::vector<std::string> remarks_on(const std::vector<InputFile>& files, const SkippedFiles& skipped);
std::vector<std::string> remarks_on(const std::vector<std::string>& patterns);

// What helps whoever names a path that is not there: a list with commas, an address, a data set of the hub.
// Begins with "; "; empty where it looks like none of them.
std::string hint_on_missing_path(std::string_view path);

// A stretch of one file.
struct TextBlock {
  std::size_t file = 0;  // index in the list of files
  std::int64_t first_line = 1;
  std::string text;                // whole lines; for plain text, whole parts
  std::vector<std::size_t> parts;  // for plain text: where each part ends in `text`
  bool begins_file = false, ends_file = false;
  std::uint64_t end = 0;       // offset in the unpacked file, behind the block
  std::int64_t next_line = 1;  // the line that begins there
  std::uint64_t position = 0;  // bytes of the file, as it lies on disk, that were read up to here
};

// Reads files one after another. Plain text is cut into parts at paragraph ends (line ends, blanks, where
// there are none): a 32nd of the file, at least 1 KB and at most 64 KB, so that even one file can be divided
// into training and validation data. The cuts depend on the file alone. Memory: one block, which is as long
// as the longest line needs. Not thread-safe.
class BlockReader {
 public:
  static constexpr std::size_t kBlockSize = 256 << 10;
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  // `max_line`: of JSON lines, unpacked. Longer ones are refused before they are read: a line has to be in
  // memory as a whole, and 94 KB of .zst can hold one of gigabytes.
  explicit BlockReader(std::vector<InputFile> files, std::size_t block_size = kBlockSize,
                       std::size_t max_line = kMaxLineBytes, std::string max_line_hint = {});
  // From here on next() goes on behind a block of `file` (counted from 0; their number for the end) that
  // ended at `end`, before `next_line`; with `end` 0 it begins the file. (What comes before is unpacked once
  // more where the file is compressed.)
  void go_on_behind(std::size_t file, std::uint64_t end, std::int64_t next_line);
  ~BlockReader();
  // False at the end. Every file gives at least one block, which may be empty. Error(kInvalid) at
  // "file:line" for a line over `max_line`, and at "file" for compressed data that is broken.
  bool next(TextBlock& block);
  const std::vector<InputFile>& files() const { return files_; }

 private:
  class Source;
  void fill(std::size_t wanted);
  void take(std::size_t size, TextBlock& block);
  void next_lines(TextBlock& block);
  void check_lines(std::string_view lines) const;
  void next_parts(TextBlock& block);

  std::vector<InputFile> files_;
  std::size_t block_size_, max_line_;
  std::string max_line_hint_;
  std::size_t file_ = 0;
  std::unique_ptr<Source> source_;  // of the current file
  std::string buffer_;              // read and not given out
  bool at_end_ = false;             // the buffer holds the rest of the file
  std::int64_t line_ = 1;
  std::uint64_t offset_ = 0;  // of the buffer's begin in the unpacked file
};

// The next steps after a mistake in the data, in the words of the command that reads them.
struct ReaderHints {
  std::string json_key, skip_bad, max_line;
};
// A command has an option for each: "--json-keys" ("data tokenize"), "--skip-bad", "--max-line-mib".
ReaderHints command_hints(std::string_view json_key_option);

// Where to cut the next part off `text`: behind about `target` bytes, at most twice as many.
std::size_t part_end(std::string_view text, std::size_t target);

}  // namespace primus::data
