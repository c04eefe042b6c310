#include "cli/options/own_command.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace primus::cli {

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  words.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

}  // namespace primus::cli
