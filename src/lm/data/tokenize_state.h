// How far an unfinished tokenize_corpus has come: what progress.json in its folder says. Private to lm/data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lm/data/indexed_dataset.h"

namespace primus::data {

struct TokenizeState {
  std::uint64_t key = 0;  // a hash of everything that decides the result
  // The place in the inputs, as BlockReader::go_on_behind takes it.
  std::uint64_t file = 0, end = 0;
  std::int64_t next_line = 1;
  std::uint64_t bytes = 0;  // of inputs, as they lie on disk
  std::uint64_t documents = 0, skipped_lines = 0;
  std::string first_skipped;
  bool has_words = false;  // a text so far holds more than white space
  std::vector<IndexedDatasetWriter::Progress> writers;
};

// Nothing where there is no file, or none that this version wrote.
std::optional<TokenizeState> load_state(const Path& file, Env& env);
void save_state(const TokenizeState& state, const Path& file, Env& env);

}  // namespace primus::data
