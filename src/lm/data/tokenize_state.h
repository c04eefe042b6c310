// The progress of an interrupted tokenize_corpus() call: the content of progress.json in its folder. Private
// to lm/data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lm/data/indexed_dataset.h"

namespace primus::data {

struct TokenizeState {
  std::uint64_t key = 0;  // a hash of everything that the result depends on
  // Position in the inputs: arguments for BlockReader::go_on_behind.
  std::uint64_t file = 0, end = 0;
  std::int64_t next_line = 1;
  std::uint64_t bytes = 0;  // number of bytes that were read from the input files on disk
  std::uint64_t documents = 0, skipped_lines = 0;
  std::string first_skipped;
  bool has_words = false;  // whether at least one text so far is more than white space
  std::vector<IndexedDatasetWriter::Progress> writers;
};

// Reads the file. Returns nullopt if the file does not exist or was written by another version of Primus.
std::optional<TokenizeState> load_state(const Path& file, Env& env);
void save_state(const TokenizeState& state, const Path& file, Env& env);

}  // namespace primus::data
