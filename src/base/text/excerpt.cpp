#include "base/text/excerpt.h"

#include <algorithm>

namespace primus {

std::string excerpt(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::size_t end = std::min(text.size(), kShown);
  const auto within_character = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > 0 && end < text.size() && within_character()) --end;
  std::string shown;
  for (const char c : text.substr(0, end)) c == '\0' ? shown += "\\x00" : shown += c;
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace primus
