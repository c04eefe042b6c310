// SentencePiece's text normalisation: character rules compiled into a trie (nmt_nfkc and the like), then
// white space.
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
  // `user_defined` strings pass unchanged; it must outlive this. Error(kInvalid) for rules that are cut off,
  // or make more than 256 bytes of one place.
  Normalizer(const NormalizerSpec& spec, const ByteTrie& user_defined);

  // Appends the normal form of valid UTF-8, without the blank in front of it where `continues` another text.
  // Error(kInvalid) where that is more than a TextBudget has.
  void normalize(std::string_view text, std::string& out, bool continues = false) const;

 private:
  // What the start of `text` becomes, and how many of its bytes that takes.
  std::string_view normalize_prefix(std::string_view text, std::size_t& consumed) const;
  // The longest rule at the start of `text`: where its result is in results_, or npos.
  std::size_t find_rule(std::string_view text, std::size_t& length) const;

  bool add_dummy_prefix_, remove_extra_whitespaces_, escape_whitespaces_;
  const ByteTrie& user_defined_;
  std::vector<std::uint32_t> rules_;  // a double array (darts-clone)
  std::string results_;               // ends in NUL, as each of its strings does
};

}  // namespace primus::sentencepiece
