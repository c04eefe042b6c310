// Text and JSON lines to .bin/.idx: what Megatron's tools/preprocess_data.py does, in parallel.
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
  std::vector<std::string> inputs;  // as find_inputs takes them
  std::vector<std::string> json_keys = {"text"};
  Path output_prefix;       // writes <output_prefix>_<key>_document.bin and .idx, and made_by.h's note
  bool append_eod = false;  // after each document that is not empty
  bool skip_bad = false;    // leave out broken lines and count them
  bool add_special = true;  // the tokenizer's own bos and eos around each text
  int workers = 0;          // threads; 0: one per core. As many as can be started, if those are fewer
  std::uint64_t max_line_bytes = 64 << 20;  // of JSON lines; a longer one is an error
  ReaderHints hints = command_hints("--json-keys");
  // The order of documents that Megatron's --partitions gives: document i goes to partition i % partitions,
  // and the partitions follow each other.
  int partitions = 1;
  // Where files of that name are there: refused, unless what is unfinished beside them says that they are of
  // this very work, which was killed while it gave them their names.
  Existing existing = Existing::kRefuse;
  const std::atomic<bool>* stop = nullptr;  // asks for an early end that a later call goes on from
  double save_seconds = 30;                 // how much work a killed process may lose
  double progress_seconds = 0.1;            // from one call of `progress` to the next; 0: after each block
};

struct TokenizeResult {
  std::vector<Path> prefixes;  // one per JSON key
  std::uint64_t bytes = 0;     // of input, as it lies on disk
  std::uint64_t documents = 0;
  std::uint64_t sequences = 0, tokens = 0;  // of all keys
  std::uint64_t skipped_lines = 0;
  std::string first_skipped;        // "file:line:column: why"
  std::uint64_t resumed_bytes = 0;  // of input that an earlier call had done
  bool complete = true;             // false: stopped on request
  double seconds = 0;
};

// One JSON line is one document: the key's string is its only sequence, a list of strings gives one each;
// sequences without tokens are left out. One plain-text file is one document under the first key, a sequence
// per part (corpus.h). The result does not depend on the number of workers; the files appear complete or not
// at all. Errors: kInvalid with "file:line:column" for a broken line (JSON, UTF-8) or a missing key, without
// input, or where another process writes the same files; FileError.
//
// Unfinished work lies in the folder <output_prefix>.partial. A call with the same options, tokenizer and
// inputs (by size and date) goes on from there. After an error of the input nothing of it stays; after one of
// the disk, what was saved before. `env` takes what is written; the inputs are on the real file system.
TokenizeResult tokenize_corpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                               const TokenizeProgressFn& progress = {}, Env& env = Env::posix());

// The prefix of one key's data set.
Path tokenized_prefix(const Path& output_prefix, const std::string& key);

}  // namespace primus::data
