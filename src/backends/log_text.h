// Parses numbers in another program's output. No function throws: other text gives nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace primus::backends {

// Returns the text after `label`, without leading spaces; empty if the line does not contain the label.
std::string_view text_after(std::string_view line, std::string_view label);
// Parses the number at the start of `text`; commas may group thousands. "nan" and "inf" are numbers.
std::optional<double> number(std::string_view text);
std::optional<double> number_behind(std::string_view line, std::string_view label);
// Converts to an integer from 0 to 2^53; nullopt for other values.
std::optional<std::int64_t> count(const std::optional<double>& value);

}  // namespace primus::backends
