// Converts text and JSON lines to .bin/.idx in parallel, as Megatron's tools/preprocess_data.py does.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/data/corpus.h"
#include "lm/data/dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // files to read, as patterns for find_inputs
  std::vector<std::string> json_keys = {"text"};
  Path output_prefix;       // output files are <output_prefix>_<key>_document.bin and .idx, and the note of
                            // made_by.h
  bool append_eod = false;  // whether EOD is appended to each document that is not empty
  bool skip_bad = false;    // true: broken lines are left out and counted; false: a broken line is an error
  bool add_special = true;  // whether each text gets the tokenizer's own BOS and EOS
  int workers = 0;  // number of threads; 0: one per core. Starts fewer threads if the system refuses more
  // Maximum length of a JSON line in bytes; a longer line is an error.
  std::uint64_t max_line_bytes = 64 << 20;
  ReaderHints hints = command_hints("--json-keys");
  // Order of the documents as with Megatron's option --partitions: document i goes to partition i %
  // partitions, and the partitions are concatenated.
  int partitions = 1;
  // kRefuse: existing output files are an error. Exception: files of an earlier call of the same job that was
  // killed while it renamed its files. The unfinished work shows which files these are.
  Existing existing = Existing::kRefuse;
  const std::atomic<bool>* stop = nullptr;  // the caller sets it to true to request an early stop; a later
                                            // call resumes the work
  double save_seconds = 30;                 // max seconds of work that are lost if the process is killed
  double progress_seconds = 0.1;            // seconds between calls of `progress`; 0: a call after each block
};

struct TokenizeResult {
  std::vector<Path> prefixes;  // prefix of the data set of each JSON key
  std::uint64_t bytes = 0;     // size of the inputs on disk
  std::uint64_t documents = 0;
  std::uint64_t sequences = 0, tokens = 0;  // totals over all keys
  std::uint64_t skipped_lines = 0;
  std::string first_skipped;        // the first skipped line: "file:line:column: why"
  std::uint64_t resumed_bytes = 0;  // number of input bytes that an earlier call had already processed
  bool complete = true;             // false if the call stopped early because of `stop`
  double seconds = 0;
};

// One JSON line is one document: a string gives one sequence, and a list of strings gives one sequence per
// string; empty sequences are left out. One plain-text file is one document under the first key, with one
// sequence per part (corpus.h). The result does not depend on the number of workers. Output files are either
// complete or absent. Errors: kInvalid with "file:line:column" for a broken line (JSON, UTF-8) or a missing
// key; kInvalid if there is no input, or if another process is writing the same files; FileError if
// a file cannot be read or written.
//
// Unfinished work is in the folder <output_prefix>.partial. A call with the same options, tokenizer and
// inputs resumes the work (inputs are compared by size and date). An error in the input removes the
// unfinished work; after a disk error, the work saved before remains. `env` is used for the output; the
// inputs are on the real file system.
TokenizeResult tokenize_corpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                               const TokenizeProgressFn& progress = {}, Env& env = Env::posix());

// Returns the prefix of the data set of one key.
Path tokenized_prefix(const Path& output_prefix, const std::string& key);

}  // namespace primus::data
