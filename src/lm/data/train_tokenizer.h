// Trains a byte-level BPE tokenizer on text files and JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lm/tokenizer/bpe/bpe_trainer.h"

namespace primus::data {

struct TrainTokenizerProgress {
  std::uint64_t bytes_done = 0, bytes_total = 0;  // number of input bytes read so far, and in total
  // Number of merges done, and number of merges requested. Merging begins after all inputs were read.
  std::int64_t merges_done = 0, merges_wanted = 0;
};

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;  // files to read, as patterns for find_inputs
  std::string json_key = "text";
  bool skip_bad = false;
  // Maximum length of a JSON line in bytes; a longer line is an error.
  std::uint64_t max_line_bytes = 64 << 20;
  BpeTrainerOptions bpe;
};

// Trains the tokenizer and returns the content of tokenizer.json. Throws the errors of tokenize_corpus and
// BpeTrainer.
std::string train_tokenizer(const TrainTokenizerOptions& options,
                            const std::function<void(const TrainTokenizerProgress&)>& progress = {});

}  // namespace primus::data
