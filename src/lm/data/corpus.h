// Raw text: finds the input files that a user names, and reads them in blocks of complete lines or
// paragraphs.
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
  std::uint64_t size = 0;    // size of the file on disk, in bytes
  bool known_ending = true;  // whether the file name's extension tells the format
};

// The name of the folder next to the data for files that Primus derives from the data. The folder is never
// read as data.
inline constexpr std::string_view kCacheFolder = ".primus-cache";

// Files in folders that are skipped because of their names.
struct SkippedFiles {
  Path folder;  // the first folder in which files are skipped
  // Number of skipped files by extension, such as ".py"; "" means files without an extension.
  std::map<std::string, std::int64_t> counts;
  std::int64_t hidden = 0;  // number of skipped files and folders whose names begin with a dot
  bool empty() const { return counts.empty() && hidden == 0; }
};

// Returns the files that `patterns` name: files, folders (all text and JSON-lines files below them), and
// globs ("**" matches a folder and all below it). The files are in the order of the patterns; the files of a
// folder or glob are sorted. .jsonl, .json and .ndjson hold one JSON value per line; any other file that a
// pattern names is read as text; files with a second extension .gz or .zst are decompressed. Extensions are
// case-insensitive. Throws Error(kInvalid) for a pattern that matches nothing, kUnsupported for Parquet and
// archives.
std::vector<InputFile> find_inputs(const std::vector<std::string>& patterns, SkippedFiles* skipped = nullptr);
// Returns notes for the user: which files are read as text despite an unknown extension or although they hold
// JSON lines, and how many files in folders are skipped.
std::vector<std::string> remarks_on(const std::vector<InputFile>& files, const SkippedFiles& skipped);
std::vector<std::string> remarks_on(const std::vector<std::string>& patterns);

// Throws Error(kInvalid) if `path` is a link to a missing file, for example because a disk is not mounted.
// Without this error, the data of the file would be left out silently.
void refuse_dangling_link(const Path& path);

// Returns a hint for a path that does not exist. The path may be a list with commas, a URL, or the name of a
// data set on the Hugging Face hub. The hint begins with "; "; it is empty if the path looks like none of
// these.
std::string hint_on_missing_path(std::string_view path);

// A consecutive part of one file.
struct TextBlock {
  std::size_t file = 0;  // index in the list of input files
  std::int64_t first_line = 1;
  std::string text;                // complete lines; for plain text, complete parts (see BlockReader)
  std::vector<std::size_t> parts;  // for plain text: the index in `text` after each part
  bool begins_file = false, ends_file = false;
  std::uint64_t end = 0;       // offset of the block's end in the decompressed file
  std::int64_t next_line = 1;  // line number of the line that begins at `end`
  std::uint64_t position = 0;  // number of bytes read so far from the file on disk
};

// Reads files one after another. Plain text is cut into parts at paragraph ends (or else at line ends, or
// else at blanks). The size of a part is a 32nd of the file, but at least 1 KB and at most 64 KB. Because of
// the parts, even a single file can be divided into training and validation data. The cuts depend only on the
// file. Memory: one block, extended to hold the longest line. Not thread-safe.
class BlockReader {
 public:
  static constexpr std::size_t kBlockSize = 256 << 10;
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  // `max_line`: maximum decompressed length of a JSON line. A longer line is an error, because a line must
  // fit in memory, and 94 KB of .zst data can decompress to a line of gigabytes.
  explicit BlockReader(std::vector<InputFile> files, std::size_t block_size = kBlockSize,
                       std::size_t max_line = kMaxLineBytes, std::string max_line_hint = {});
  // Resumes reading: next() continues after the block of file `file` that ended at byte `end`, with line
  // `next_line`. If `file` equals the number of files, the input has ended. `end` = 0 starts at the file's
  // beginning. (In a compressed file, the data before `end` is decompressed again.)
  void go_on_behind(std::size_t file, std::uint64_t end, std::int64_t next_line);
  ~BlockReader();
  // Reads the next block; returns false after the last one. Every file yields at least one block, which may
  // be empty. Throws Error(kInvalid) at "file:line" for a line over `max_line`, and at "file" for broken
  // compressed data.
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
  std::unique_ptr<Source> source_;  // reads the current file
  std::string buffer_;              // text that was read but is not yet in a block
  bool at_end_ = false;             // whether the buffer extends to the end of the file
  std::int64_t line_ = 1;
  std::uint64_t offset_ = 0;  // offset of the buffer's start in the decompressed file
};

// Hints for messages about errors in the data; they name options of the command that reads the data.
struct ReaderHints {
  std::string json_key, skip_bad, max_line;
  // For conversations where text is expected.
  std::string conversations =
      "these are conversations: train on them with 'primus train posttrain' (sft_dataset_name=FILE), or "
      "evaluate with 'primus eval loss --conversations FILE'";
};
// Returns hints that name the options `json_keys` (such as "--json-keys"), "--skip-bad" and "--max-line-mib".
ReaderHints command_hints(std::string_view json_key_option);

// Returns the length of the next part of `text`: about `target` bytes, at most 2 * target.
std::size_t part_end(std::string_view text, std::size_t target);

}  // namespace primus::data
