#include "backends/log_text.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace primus::backends {

std::string_view text_after(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return {};
  std::string_view rest = line.substr(at + label.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

std::optional<double> number(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    const bool part = (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || (c >= 'a' && c <= 'z') ||
                      (c >= 'A' && c <= 'Z');
    if (c == ',') continue;
    if (!part || digits.size() > 40) break;
    digits += c;
  }
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const char* const begin = digits.starts_with('+') ? digits.data() + 1 : digits.data();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop == begin) return std::nullopt;
  return value;
}

std::optional<double> number_behind(std::string_view line, std::string_view label) {
  return number(text_after(line, label));
}

std::optional<std::int64_t> count(const std::optional<double>& value) {
  constexpr double kMax = 9007199254740992.0;
  if (!value || !(*value >= 0) || *value > kMax) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

}  // namespace primus::backends
