#include "base/text/counted.h"

#include <fmt/format.h>

namespace primus {

std::string noun_for(std::int64_t count, std::string_view noun) {
  constexpr std::string_view kVowels = "aeiou";
  std::string text(noun);
  if (count == 1 || text.empty()) return text;
  const bool hisses =
      text.ends_with('s') || text.ends_with('x') || text.ends_with("ch") || text.ends_with("sh");
  if (hisses) return text + "es";
  if (text.size() > 1 && text.ends_with('y') &&
      kVowels.find(text[text.size() - 2]) == std::string_view::npos) {
    text.back() = 'i';
    return text + "es";
  }
  return text + "s";
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}", count, noun_for(count, noun));
}

}  // namespace primus
