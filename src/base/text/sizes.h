// Memory and message sizes as written on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Parses sizes from 1 to `maximum`, such as "80GiB", "64K", "1MB", "4096" (powers of 1024; no unit: bytes).
// Returns nullopt for other texts.
std::optional<std::int64_t> parse_size(std::string_view text, std::int64_t maximum);

// Parses "64K,1M,1G"; keeps the order. Throws Error(kInvalid) naming `option`.
std::vector<std::int64_t> parse_sizes(const char* option, const std::string& text, std::int64_t maximum);

}  // namespace primus
