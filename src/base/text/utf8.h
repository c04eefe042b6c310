// UTF-8 as the Unicode standard's table 3-7 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus::unicode {

// Length of the well-formed character at the start of `text`; 0 if there is none, and then `bad` is the
// length of the maximal part to replace by one U+FFFD.
int well_formed(std::string_view text, int& bad);

// Length of the longest valid UTF-8 prefix. With `incomplete`, reports how many bytes after it are the start
// of a character that further bytes may complete (0 where they are simply wrong).
std::size_t valid_prefix(std::string_view text, std::size_t* incomplete = nullptr);
inline bool is_valid(std::string_view text) { return valid_prefix(text) == text.size(); }

void append(char32_t code_point, std::string& out);

}  // namespace primus::unicode
