#include "cli/train/fit_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

#include "base/error.h"
#include "base/text/sizes.h"

namespace primus::cli {

std::vector<std::string> without_fit(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--fit-memory" || word == "--fit_memory") {
      ++i;
    } else if (word != "--fit" && !word.starts_with("--fit-memory=") && !word.starts_with("--fit_memory=")) {
      kept.push_back(word);
    }
  }
  return kept;
}

Trainer::FitMemory parse_fit_memory(const std::string& text) {
  if (!text.ends_with('%')) {
    const auto bytes = parse_size(text, std::int64_t{1} << 50);
    if (!bytes) {
      throw invalid(fmt::format("--fit-memory {}: not a memory size", text),
                    "write 80GiB, 512MiB, or a share of the device's memory: 90%");
    }
    return {.bytes = *bytes};
  }
  double share = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size() - 1, share);
  if (error != std::errc() || rest != text.data() + text.size() - 1 || !(share > 0 && share <= 100))
    throw invalid(fmt::format("--fit-memory {}: not a share of the memory", text), "write 1% to 100%");
  return {.share = share / 100};
}

}  // namespace primus::cli
