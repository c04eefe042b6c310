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
  Path output_prefix;  // prefix of <output_prefix>_<key>_document.bin and .idx, and of the note of made_by.h
  bool append_eod = false;  // whether EOD is appended to each document that is not empty
  bool skip_bad = false;    // whether broken lines are left out and counted
  bool add_special = true;  // whether each text gets the tokenizer's own BOS and EOS
  int workers = 0;  // number of threads; 0: one per core. Starts fewer threads if the system refuses more
  // Maximum length of a JSON line in bytes; a longer line is an error.
  std::uint64_t max_line_bytes = 64 << 20;
  ReaderHints hints = command_hints("--json-keys");
  // The document order of Megatron's --partitions: document i goes to partition i % partitions, and the
  // partitions are concatenated.
  int partitions = 1;
  // kRefuse: existing output files are an error, unless the unfinished work next to them shows that an
  // earlier call of this job was killed during renaming.
  Existing existing = Existing::kRefuse;
  const std::atomic<bool>* stop = nullptr;  // set to true to request an early stop; a later call resumes
  double save_seconds = 30;                 // max seconds of work that a killed process loses
  double progress_seconds = 0.1;            // seconds between calls of `progress`; 0: calls after each block
};

struct TokenizeResult {
  std::vector<Path> prefixes;  // prefix of each JSON key's data set
  std::uint64_t bytes = 0;     // size of the inputs on disk
  std::uint64_t documents = 0;
  std::uint64_t sequences = 0, tokens = 0;  // totals of all keys
  std::uint64_t skipped_lines = 0;
  std::string first_skipped;        // the first skipped line: "file:line:column: why"
  std::uint64_t resumed_bytes = 0;  // number of input bytes that an earlier call had already processed
  bool complete = true;             // false if the call stopped on request
  double seconds = 0;
};

// One JSON line is one document: a string gives one sequence, and a list of strings gives one sequence per
// string; empty sequences are left out. One plain-text file is one document under the first key, with one
// sequence per part (corpus.h). The result does not depend on the number of workers; the files appear
// complete or not at all. Errors: kInvalid with "file:line:column" for a broken line (JSON, UTF-8) or a
// missing key, if there is no input, or while another process writes the same files; FileError.
//
// Unfinished work is in the folder <output_prefix>.partial. A call with the same options, tokenizer and
// inputs (by size and date) resumes it. An error in the input removes the unfinished work; after a disk
// error, the work saved before remains. `env` is used for the output; the inputs are on the real file system.
TokenizeResult tokenize_corpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                               const TokenizeProgressFn& progress = {}, Env& env = Env::posix());

// The prefix of one key's data set.
Path tokenized_prefix(const Path& output_prefix, const std::string& key);

}  // namespace primus::data
