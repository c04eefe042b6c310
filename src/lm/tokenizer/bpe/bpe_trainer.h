// Learns byte-level BPE merges from text (Sennrich et al. 2016), as Hugging Face's BpeTrainer does:
// repeatedly merges the most frequent adjacent pair; of equally frequent pairs, the pair with the lower ids.
// Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lm/tokenizer/text/pretokenize.h"

namespace primus {

struct BpeTrainerOptions {
  std::int32_t vocab_size = 8192;  // size of the vocabulary, including special tokens and the 256 bytes
  // Special tokens, which get the lowest ids. Loaders find the end-of-document token by the name
  // <|endoftext|>.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  bool gpt2_style = false;         // true: words are split by GPT-2's regular expression; false: by Llama 3's
  std::int64_t min_frequency = 2;  // only pairs that occur at least this often are merged
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of a text. Bytes that are not UTF-8 are counted as U+FFFD.
  void add(std::string_view text);
  // Adds the word counts of `other`. The result is as if this trainer had counted all texts.
  void add(BpeTrainer&& other);

  // Learns the merges and returns a tokenizer.json, which Hugging Face tokenizers and load_tokenizer read.
  // Calls progress(merges, wanted) from time to time. The vocabulary is smaller than vocab_size if the text
  // has too few pairs. Throws Error(kInvalid) if no text was added, or if vocab_size is too small for the
  // bytes and special tokens.
  std::string train(const std::function<void(std::int64_t, std::int64_t)>& progress = {}) const;

 private:
  BpeTrainerOptions options_;
  std::unique_ptr<PreTokenizer> splitter_;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> words_;
};

}  // namespace primus
