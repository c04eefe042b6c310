// Tokens that are found in the text before anything else happens to it: special tokens and user-added words.
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
  bool special = false;      // left out when decoding with skip_special
  bool normalized = false;   // looked for in the normalised text, not the raw one
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // takes the spaces to its left with it
  bool rstrip = false;       // ... to its right

  bool same_flags(const AddedToken& other) const {
    return special == other.special && normalized == other.normalized && single_word == other.single_word &&
           lstrip == other.lstrip && rstrip == other.rstrip;
  }
};

// Finds the tokens in a text: leftmost first, and of those that start at one place the longest (Hugging
// Face's AddedVocabulary). One pass; each position costs at most the length of the longest token.
class AddedTokenMatcher {
 public:
  static constexpr std::size_t kMaxTokenBytes = 4096;  // what its users let pass
  AddedTokenMatcher() = default;
  // `contents[i]` is how tokens[i] appears in the text (its normalised form, where it is looked for there).
  // Empty ones are never found; of equal ones the last counts.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);
  bool empty() const { return entries_.empty(); }

  // Calls sink(text, -1) for stretches without a token and sink(text, id) for tokens, in order.
  void split(std::string_view text, FunctionRef<void(std::string_view, std::int32_t)> sink) const;

 private:
  struct Entry {
    std::string content;
    std::size_t token;  // index in tokens_
  };
  // The longest token at the start of `text` and its length in the text, or null.
  const AddedToken* longest(std::string_view text, std::size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<Entry> entries_;  // sorted by content
  std::array<std::size_t, 257> first_byte_ =
      {};  // entries that start with byte b: [first_byte_[b], first_byte_[b + 1])
};

}  // namespace primus
