// Learns byte-level BPE merges from text (Sennrich et al. 2016), as Hugging Face's BpeTrainer does: the most
// frequent pair of neighbours merges first, of equally frequent ones that with the lower ids. Deterministic.
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
  std::int32_t vocab_size = 8192;  // special tokens and the 256 bytes included
  std::vector<std::string> special_tokens = {
      "<|endoftext|>"};            // the first ids; readers know by its name which of them ends documents
  bool gpt2_style = false;         // cut words by GPT-2's expression instead of Llama 3's
  std::int64_t min_frequency = 2;  // a pair must occur so often to merge
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of a text; bytes that are not UTF-8 count as U+FFFD.
  void add(std::string_view text);
  // Words of both, as if one trainer had been given all the texts.
  void add(BpeTrainer&& other);

  // Learns the merges and returns the tokenizer.json, which Hugging Face tokenizers and load_tokenizer read.
  // progress(merges, wanted) is called now and then. The vocabulary stays smaller where the text has too few
  // pairs. Error(kInvalid) without text, or for a vocabulary that does not hold the bytes and special tokens.
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
