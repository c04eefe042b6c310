// GPT-2's byte alphabet: a printable character for every byte, so that a vocabulary of byte strings fits in a
// text file. Printable Latin-1 bytes map to themselves, the other bytes to U+0100 and up.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace primus::byte_level {

char32_t to_character(unsigned char byte);
// Maps " the" to "Ġthe".
std::string to_text(std::string_view bytes);
// Returns the bytes of a token's text; nullopt if the text has a character outside the alphabet.
std::optional<std::string> to_bytes(std::string_view text);

}  // namespace primus::byte_level
