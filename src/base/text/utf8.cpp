#include "base/text/utf8.h"

#include <cstring>

namespace primus::unicode {

int well_formed(std::string_view text, int& bad) {
  const auto b = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = b(0);
  bad = 1;
  if (lead < 0x80) return 1;
  int length;
  unsigned low = 0x80, high = 0xBF;  // allowed range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (b(1) < low || b(1) > high) return 0;
  for (bad = 2; bad < length; ++bad) {
    if ((b(static_cast<std::size_t>(bad)) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void append(char32_t c, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

std::size_t valid_prefix(std::string_view text, std::size_t* incomplete) {
  if (incomplete != nullptr) *incomplete = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t word;
    while (i + 8 <= text.size() &&
           (std::memcpy(&word, text.data() + i, 8), (word & 0x8080808080808080u) == 0))
      i += 8;
    if (i == text.size()) break;
    int bad;
    const int length = well_formed(text.substr(i, 4), bad);
    if (length == 0) {
      // Detects the valid start of a character whose last bytes are missing at the end of the text.
      const auto lead = static_cast<unsigned char>(text[i]);
      const bool starts = lead >= 0xC2 && lead <= 0xF4;
      if (incomplete != nullptr && starts && i + static_cast<std::size_t>(bad) == text.size()) {
        *incomplete = static_cast<std::size_t>(bad);
      }
      return i;
    }
    i += static_cast<std::size_t>(length);
  }
  return i;
}

}  // namespace primus::unicode
