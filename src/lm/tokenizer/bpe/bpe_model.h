// The BPE model of Hugging Face tokenizers: converts the words of a pre-tokenizer to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/tokenizer/bpe/bpe.h"
#include "lm/tokenizer/bpe/vocabulary.h"

namespace primus {

struct BpeOptions {
  bool byte_level = false;  // whether symbols are bytes, written in the alphabet of GPT-2 (byte_level.h)
  // Whether a character without a token is encoded as one token per byte, such as <0xE4>.
  bool byte_fallback = false;
  bool fuse_unk = false;       // whether consecutive unknown characters become a single unknown token
  bool ignore_merges = false;  // whether a word that is itself a token is encoded as that token, without
                               // merges
  std::string unk_token;       // text of the unknown token; empty: characters without a token are dropped
  std::string continuing_subword_prefix, end_of_word_suffix;
};

// Thread-safety: encode() may run in any number of threads, each with its own scratch.
class BpeModel {
 public:
  // Left and right token of each merge, in order of rank.
  using MergeList = std::vector<std::pair<std::string, std::string>>;

  // Throws Error(kInvalid) for a merge or token that does not fit the vocabulary; the message names it.
  BpeModel(BpeOptions options, Vocabulary vocabulary, const MergeList& merges);
  // Like the other constructor, but the merges are given by ids.
  BpeModel(BpeOptions options, Vocabulary vocabulary, std::span<const MergeTable::Merge> merges);

  struct Scratch {
    MergeScratch merge;
    WordCache cache;
    std::vector<std::int32_t> symbols;
  };
  // Appends the ids of one word, which must be valid UTF-8.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void prepare();
  void first_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void character_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<std::int32_t>& symbols) const;

  BpeOptions options_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  // Ids of single bytes (byte level) or of the tokens <0x..> (byte fallback); -1: no token.
  std::array<std::int32_t, 256> byte_ids_{};
  std::optional<std::int32_t> unk_id_;
  Vocabulary words_;  // tokens as raw bytes; used to look up complete words in a byte-level vocabulary
};

}  // namespace primus
