// Python's rules for characters and strings, for templates.
//
// Texts are valid UTF-8. Functions are thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace primus::jinja {

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_alphabetic(char32_t c);
bool is_decimal(char32_t c);  // a digit 0 to 9 of any script
bool is_numeric(char32_t c);  // category N
bool is_upper(char32_t c);
bool is_lower(char32_t c);
inline bool is_word(char32_t c) { return c == '_' || is_alphabetic(c) || is_numeric(c); }

// Removes white space (or the characters of `removed`) at the chosen ends.
std::string_view strip(std::string_view text, bool left, bool right);
std::string_view strip(std::string_view text, std::string_view removed, bool left, bool right);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string casefold(std::string_view text);
std::string swapcase(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// Splits at runs of white space; at most `limit` times unless `limit` is negative.
std::vector<std::string_view> split_words(std::string_view text, std::int64_t limit, bool from_right);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t limit,
                                       bool from_right);

// Calls f(code point, bytes of the character) for each character.
template <typename F>
void each_character(std::string_view text, F f);

// The code point at the start or the end of a text, which must not be empty, and its size in bytes.
struct Character {
  char32_t code = 0;
  std::size_t size = 0;
};
Character first_character(std::string_view text);
Character last_character(std::string_view text);

template <typename F>
void each_character(std::string_view text, F f) {
  while (!text.empty()) {
    const Character c = first_character(text);
    f(c.code, text.substr(0, c.size));
    text.remove_prefix(c.size);
  }
}

}  // namespace primus::jinja
