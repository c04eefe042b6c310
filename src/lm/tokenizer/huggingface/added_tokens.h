// Added tokens are matched in the text before all other steps: special tokens, and words that users added.
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
  bool special = false;      // whether decoding with skip_special omits the token
  bool normalized = false;   // true: the token is matched in the normalized text; false: in the raw text
  bool single_word = false;  // whether a match must have a non-word character, or nothing, on either side
  bool lstrip = false;       // whether a match includes the spaces to its left
  bool rstrip = false;       // whether a match includes the spaces to its right

  bool same_flags(const AddedToken& other) const {
    return special == other.special && normalized == other.normalized && single_word == other.single_word &&
           lstrip == other.lstrip && rstrip == other.rstrip;
  }
};

// Finds added tokens in a text: the leftmost token first, and of several tokens at one position the longest
// (Hugging Face's AddedVocabulary). Makes one pass; each position costs at most the length of the longest
// token.
class AddedTokenMatcher {
 public:
  static constexpr std::size_t kMaxTokenBytes = 4096;  // maximum length of a token, which callers must check
  AddedTokenMatcher() = default;
  // `contents[i]` is the text that tokens[i] matches (normalized if `normalized` is set). Empty contents
  // never match; of equal contents, the last is used.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);
  bool empty() const { return entries_.empty(); }

  // Calls sink(text, -1) for text between tokens, and sink(text, id) for tokens, in order.
  void split(std::string_view text, FunctionRef<void(std::string_view, std::int32_t)> sink) const;

 private:
  struct Entry {
    std::string content;
    std::size_t token;  // index of the token in tokens_
  };
  // Returns the longest token that matches at the start of `text`, or null; sets `length` to the length of
  // the match.
  const AddedToken* longest(std::string_view text, std::size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<Entry> entries_;  // entries sorted by content
  // The entries whose content starts with byte b are [first_byte_[b], first_byte_[b + 1]).
  std::array<std::size_t, 257> first_byte_ = {};
};

}  // namespace primus
