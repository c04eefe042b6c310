// Checks texts that must be lists of numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace primus::config {

// Returns whether `text` has at most three numbers, which are >= 0 and not all 0: "969,30,1".
bool is_split(std::string_view text);

// Returns whether `texts` are two numbers: a min and a larger max.
bool is_range(const std::vector<std::string>& texts);

}  // namespace primus::config
