#include "base/system/shell.h"

namespace primus {

std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=./:,@%") == std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

}  // namespace primus
