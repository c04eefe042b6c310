// Numbers in the lines that another program prints. Nothing is thrown: what is no number is no value.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace primus::backends {

// The text behind `label`, without spaces in front; empty where the line has no such label.
std::string_view behind(std::string_view line, std::string_view label);
// The number that `text` begins with; thousands may be set off by commas. "nan" and "inf" are numbers.
std::optional<double> number(std::string_view text);
std::optional<double> number_behind(std::string_view line, std::string_view label);
// A whole number from 0 to 2^53.
std::optional<std::int64_t> count(const std::optional<double>& value);

}  // namespace primus::backends
