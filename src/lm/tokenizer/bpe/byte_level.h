// GPT-2's alphabet has a printable character for every byte. A vocabulary of byte strings can therefore be
// stored in a text file. Printable Latin-1 bytes map to themselves, the other bytes to U+0100 and above.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace primus::byte_level {

char32_t to_character(unsigned char byte);
// Converts bytes to text: " the" becomes "Ġthe".
std::string to_text(std::string_view bytes);
// Converts the text of a token to bytes; nullopt if the text has a character outside of the alphabet.
std::optional<std::string> to_bytes(std::string_view text);

}  // namespace primus::byte_level
