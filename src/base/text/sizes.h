// Memory and message sizes as written on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Parses "80GiB", "64K", "1MB", "4096" (powers of 1024; no unit: bytes), from 1 to `maximum`. Returns
// nullopt for others.
std::optional<std::int64_t> parse_size(std::string_view text, std::int64_t maximum);

// Parses "64K,1M,1G"; keeps the order. Throws Error(kInvalid) naming `option`.
std::vector<std::int64_t> parse_sizes(const char* option, const std::string& text, std::int64_t maximum);

}  // namespace primus
