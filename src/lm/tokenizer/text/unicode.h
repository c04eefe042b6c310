// UTF-8 text, and the Unicode properties that pre-tokenizers and normalizers use (Unicode 16: utf8proc's
// tables, and newer_characters.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/utf8.h"

namespace primus::unicode {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // the character U+FFFD

// The character U+FEFF, with which a file may begin.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Returns the length in bytes of the UTF-8 character whose first byte is `lead`; the text must be valid.
inline int char_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the code point at `p` in valid UTF-8 and advances `p` past it.
inline char32_t decode(const char*& p) {
  const auto b = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = b(0);
  if (lead < 0x80) return p += 1, lead;
  char32_t c;
  if (lead < 0xE0) {
    c = (lead & 0x1F) << 6 | (b(1) & 0x3F);
    p += 2;
  } else if (lead < 0xF0) {
    c = (lead & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
    p += 3;
  } else {
    c = (lead & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
    p += 4;
  }
  return c;
}

// Throws Error(kInvalid) at "name:line:column" of the first byte that is not UTF-8. `first_line` is the line
// number of the text's first line; columns are bytes, counted from 1.
void require_valid(std::string_view text, std::string_view name, std::int64_t first_line);
// Appends `text`. Each maximal invalid part is replaced by U+FFFD (the rule of WHATWG and of Rust's
// from_utf8_lossy).
void append_lossy(std::string_view text, std::string& out);
// Returns `text` itself if it is valid, otherwise a repaired copy in `storage`.
std::string_view valid_or_repaired(std::string_view text, std::string& storage);

// Properties of a code point, as bits.
using Properties = std::uint16_t;
enum : Properties {
  kLetter = 1,          // \p{L}
  kNumber = 2,          // \p{N}
  kSpace = 4,           // \s, White_Space
  kNewline = 8,         // \r or \n
  kUpperLike = 16,      // Lu, Lt, Lm, Lo, M
  kLowerLike = 32,      // Ll, Lm, Lo, M
  kPunctuation = 64,    // as in the pre-tokenizer Punctuation: \p{P} of Unicode 8, and all ASCII symbols
  kWord = 128,          // \w
  kNewer = 256,         // set if the character's category in Unicode 14 differs (newer_characters.h)
  kNumericDigit = 512,  // as in the pre-tokenizer Digits: \p{N} of Unicode 17
};

// The property bits of every code point, in a two-level table that is filled once.
class PropertyTable {
 public:
  Properties operator[](char32_t c) const { return blocks_[stage1_[c >> 8]][c & 0xFF]; }
  Properties ascii(char c) const { return blocks_[0][static_cast<unsigned char>(c)]; }

 private:
  friend const PropertyTable& properties();
  PropertyTable();
  std::array<std::uint16_t, 0x1100> stage1_;
  std::vector<std::array<Properties, 256>> blocks_;  // blocks of 256 code points; block 0 contains ASCII
};
const PropertyTable& properties();
// Returns whether `text`, which must be valid UTF-8, has a character with kNewer.
bool has_newer(std::string_view text);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
// Returns the normal form of valid UTF-8. Takes time n log n for any text, even with many consecutive
// combining marks.
std::string normalize(std::string_view text, Form form);
// Returns true only if `text` is certainly in NFC; false may mean "perhaps".
bool is_surely_nfc(std::string_view text);

std::string lowercase(std::string_view text);

}  // namespace primus::unicode
