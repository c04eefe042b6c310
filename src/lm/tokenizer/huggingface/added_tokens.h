// Tokens that are matched in the text before all other steps: special tokens and words added by users.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/thread_pool.h"

namespace primus {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;      // whether the token is omitted when decoding with skip_special
  bool normalized = false;   // whether the token is matched in the normalised text instead of the raw text
  bool single_word = false;  // whether the token matches only between non-word characters
  bool lstrip = false;       // whether a match includes the spaces to its left
  bool rstrip = false;       // whether a match includes the spaces to its right

  bool same_flags(const AddedToken& other) const {
    return special == other.special && normalized == other.normalized && single_word == other.single_word &&
           lstrip == other.lstrip && rstrip == other.rstrip;
  }
};

// Finds the tokens in a text: the leftmost token first, and the longest token if several start at the same
// position (Hugging Face's AddedVocabulary). One pass; each position costs at most the length of the longest
// token.
class AddedTokenMatcher {
 public:
  static constexpr std::size_t kMaxTokenBytes = 4096;  // limit that callers check
  AddedTokenMatcher() = default;
  // `contents[i]` is how tokens[i] appears in the text (normalised if `normalized` is set). Empty contents
  // never match; of equal contents the last counts.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);
  bool empty() const { return entries_.empty(); }

  // Calls sink(text, -1) for the text between tokens and sink(text, id) for tokens, in order.
  void split(std::string_view text, FunctionRef<void(std::string_view, std::int32_t)> sink) const;

 private:
  struct Entry {
    std::string content;
    std::size_t token;  // index of the token in tokens_
  };
  // Returns the longest token at the start of `text` and the length of the match, or null.
  const AddedToken* longest(std::string_view text, std::size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<Entry> entries_;  // entries sorted by content
  // Entries that start with byte b: [first_byte_[b], first_byte_[b + 1]).
  std::array<std::size_t, 257> first_byte_ = {};
};

}  // namespace primus
