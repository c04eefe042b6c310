// SentencePiece's text normalization: first, character rules compiled into a trie (such as nmt_nfkc); then,
// treatment of white space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lm/tokenizer/sentencepiece/byte_trie.h"
#include "lm/tokenizer/sentencepiece/model.h"

namespace primus::sentencepiece {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Thread-safe.
class Normalizer {
 public:
  // Occurrences of strings in `user_defined` are not changed. `user_defined` must outlive this object. Throws
  // Error(kInvalid) if rules are truncated, or if a rule's result is longer than 256 bytes.
  Normalizer(const NormalizerSpec& spec, const ByteTrie& user_defined);

  // Appends the normalized text; `text` must be valid UTF-8. If `continues` is true, `text` follows another
  // text, and no space is added before `text`. Throws Error(kInvalid) if the result exceeds a TextBudget.
  void normalize(std::string_view text, std::string& out, bool continues = false) const;

 private:
  // Returns the text that replaces the start of `text`; sets `consumed` to the number of bytes that it
  // replaces.
  std::string_view normalize_prefix(std::string_view text, std::size_t& consumed) const;
  // Finds the longest rule that matches at the start of `text`. Returns the offset of its result in results_,
  // or npos.
  std::size_t find_rule(std::string_view text, std::size_t& length) const;

  bool add_dummy_prefix_, remove_extra_whitespaces_, escape_whitespaces_;
  const ByteTrie& user_defined_;
  std::vector<std::uint32_t> rules_;  // the rules as a double-array trie (darts-clone)
  std::string results_;               // results of the rules, as NUL-terminated strings
};

}  // namespace primus::sentencepiece
