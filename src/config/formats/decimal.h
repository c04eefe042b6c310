// Rounds computed numbers to short decimal numbers.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace primus::config {

// Returns the number with at most `digits` significant decimal digits that is nearest to `value`. For
// example, 1e-4 * 0.1 is 1.0000000000000001e-05 in binary arithmetic, and this function returns 1e-05.
inline double decimal(double value, int digits = 12) {
  const std::string text = fmt::format("{:.{}e}", value, digits - 1);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

}  // namespace primus::config
