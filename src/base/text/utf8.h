// UTF-8 according to table 3-7 of the Unicode standard: no overlong forms, no surrogates, no characters above
// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus::unicode {

// Returns the length of the well-formed character at the start of `text`; 0 if the start is malformed. For a
// malformed start, `bad` is set to the length of the maximal subpart, which one U+FFFD replaces.
int well_formed(std::string_view text, int& bad);

// Returns the length of the longest valid UTF-8 prefix. `incomplete`, if given, receives the number of bytes
// after the prefix that begin an incomplete character (0 if they are invalid).
std::size_t valid_prefix(std::string_view text, std::size_t* incomplete = nullptr);
inline bool is_valid(std::string_view text) { return valid_prefix(text) == text.size(); }

void append(char32_t code_point, std::string& out);

}  // namespace primus::unicode
