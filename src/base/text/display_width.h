// The number of terminal columns of text: wide characters (Chinese, Japanese, Korean, emoji) occupy two,
// combining marks none. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace primus {

// Returns the columns of one character: 0, 1 or 2. Control characters have 0.
std::size_t display_width(char32_t character);
// Returns the columns of a line. Color escape sequences (ESC [ ... m) count 0, invalid UTF-8 bytes 1 each.
std::size_t display_width(std::string_view line);
// Returns the part of `line` that fits into `columns`, plus all later color sequences, which switch colors
// off.
std::string fit_width(std::string_view line, std::size_t columns);

}  // namespace primus
