// SentencePiece's text normalisation: character rules compiled into a trie (such as nmt_nfkc), then white
// space.
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
  // Strings in `user_defined` are not changed. `user_defined` must outlive this object. Error(kInvalid) for
  // rules that are truncated, or that replace one prefix by more than 256 bytes.
  Normalizer(const NormalizerSpec& spec, const ByteTrie& user_defined);

  // Appends the normal form of valid UTF-8. If `continues` is true, the text continues another one and no
  // space is added before the text. Error(kInvalid) if the result exceeds a TextBudget.
  void normalize(std::string_view text, std::string& out, bool continues = false) const;

 private:
  // Returns the replacement of the start of `text`; `consumed` is the number of replaced bytes.
  std::string_view normalize_prefix(std::string_view text, std::size_t& consumed) const;
  // Finds the longest rule at the start of `text`: returns the offset of its result in results_, or npos.
  std::size_t find_rule(std::string_view text, std::size_t& length) const;

  bool add_dummy_prefix_, remove_extra_whitespaces_, escape_whitespaces_;
  const ByteTrie& user_defined_;
  std::vector<std::uint32_t> rules_;  // the rules, as a double array (darts-clone)
  std::string results_;               // results of the rules, as NUL-terminated strings
};

}  // namespace primus::sentencepiece
