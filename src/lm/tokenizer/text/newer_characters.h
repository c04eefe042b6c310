// Characters whose general category differs between Unicode 14 and 16.
//
// The tokenizers library uses Unicode 16, but the system's PCRE2 and utf8proc may use an older version. The
// table lists the characters that differ.
#pragma once

#include <span>
#include <string_view>

namespace primus::unicode {

struct NewerCharacters {
  char32_t first, last;
  std::string_view category;              // category in Unicode 16: "Lu"
  std::string_view script, short_script;  // names of the script: "cyrillic", "cyrl"
};

// Returns the table, sorted by code point.
std::span<const NewerCharacters> newer_characters();

// Returns the general category of a code point in Unicode 16: "Lu", "Cn" ...
std::string_view category(char32_t c);

}  // namespace primus::unicode
