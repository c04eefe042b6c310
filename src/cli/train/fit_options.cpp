#include "cli/train/fit_options.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

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

namespace {

// GB, MB and TB are powers of 1000 here, as on the labels of GPUs. parse_size() reads them as GiB, MiB, TiB.
std::int64_t decimal(const std::string& text, std::int64_t bytes) {
  constexpr std::string_view kUnits = "KMGT";
  if (text.size() < 2 || std::toupper(text.back()) != 'B') return bytes;
  const std::size_t unit = kUnits.find(static_cast<char>(std::toupper(text[text.size() - 2])));
  if (unit == std::string_view::npos) return bytes;
  double value = static_cast<double>(bytes);
  for (std::size_t i = 0; i <= unit; ++i) value *= 1000.0 / 1024.0;
  return static_cast<std::int64_t>(value);
}

}  // namespace

Trainer::FitMemory parse_fit_memory(const std::string& text) {
  if (!text.ends_with('%')) {
    const auto bytes = parse_size(text, std::int64_t{1} << 50);
    if (!bytes) {
      throw invalid(fmt::format("--fit-memory {}: not a memory size", text),
                    "write 80GiB, 512MiB, or a share of the device's memory: 90%");
    }
    return {.bytes = decimal(text, *bytes)};
  }
  double share = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size() - 1, share);
  if (error != std::errc() || rest != text.data() + text.size() - 1 || !(share > 0 && share <= 100))
    throw invalid(fmt::format("--fit-memory {}: not a share of the memory", text), "write 1% to 100%");
  return {.share = share / 100};
}

}  // namespace primus::cli
