#include "base/text/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"

namespace primus {

std::optional<std::int64_t> parse_size(std::string_view text, std::int64_t maximum) {
  constexpr std::pair<std::string_view, int> kUnits[] = {{"", 0},     {"K", 10},  {"M", 20},  {"G", 30},
                                                         {"KB", 10},  {"MB", 20}, {"GB", 30}, {"KiB", 10},
                                                         {"MiB", 20}, {"GiB", 30}};
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  for (const auto& [name, bits] : kUnits) {
    if (unit == name) return value <= (maximum >> bits) ? std::optional(value << bits) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::int64_t> parse_sizes(const char* option, const std::string& text, std::int64_t maximum) {
  std::vector<std::int64_t> sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    const auto size = parse_size(word, maximum);
    if (!size) {
      throw invalid(fmt::format("{} {}: '{}' is not a size from 1 to {}", option, text, word, maximum),
                    "write numbers with K, M or G, separated by commas: 64K,1M");
    }
    sizes.push_back(*size);
  }
  return sizes;
}

}  // namespace primus
