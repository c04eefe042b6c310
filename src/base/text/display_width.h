// How many columns of a terminal text takes: wide characters (Chinese, Japanese, Korean, emoji) two,
// combining marks none. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace primus {

// Of one character: 0, 1 or 2 columns. Control characters count none.
std::size_t display_width(char32_t character);
// Of a line. Escape sequences of colors (ESC [ ... m) take none; bytes that are no UTF-8 one each.
std::size_t display_width(std::string_view line);
// The beginning of `line` that fits `columns`, and all its colors, so that none stays switched on.
std::string fit_width(std::string_view line, std::size_t columns);

}  // namespace primus
