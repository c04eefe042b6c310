// GPT-2's byte alphabet: every byte has a printable character, so that a vocabulary of byte strings can be
// kept in a text file. Printable Latin-1 stands for itself, the other bytes for U+0100 and up.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace primus::byte_level {

char32_t to_character(unsigned char byte);
// "Ġthe" for " the".
std::string to_text(std::string_view bytes);
// The bytes that a token's text stands for; nothing where it has a character outside the alphabet.
std::optional<std::string> to_bytes(std::string_view text);

}  // namespace primus::byte_level
