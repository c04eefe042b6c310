#include "lm/tokenizer/bpe/byte_level.h"

#include <array>
#include <cstdint>

#include "lm/tokenizer/text/unicode.h"

namespace primus::byte_level {

namespace {

constexpr bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> table{};
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    table[static_cast<std::size_t>(byte)] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return table;
}();

// Byte of each character; -1 for characters outside the alphabet, whose last character is U+0143.
constexpr std::array<std::int16_t, 0x144> kBytes = [] {
  std::array<std::int16_t, 0x144> table{};
  table.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte) table[kCharacters[byte]] = static_cast<std::int16_t>(byte);
  return table;
}();

}  // namespace

char32_t to_character(unsigned char byte) { return kCharacters[byte]; }

std::string to_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) unicode::append(kCharacters[static_cast<unsigned char>(byte)], text);
  return text;
}

std::optional<std::string> to_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char32_t c = unicode::decode(p);
    if (c >= kBytes.size() || kBytes[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[c]));
  }
  return bytes;
}

}  // namespace primus::byte_level
