// Sizes of memory and of messages, as people write them on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// "80GiB", "64K", "1MB", "4096" (powers of 1024; no unit: bytes), from 1 to `most`; nullopt for anything
// else.
std::optional<std::int64_t> parse_size(std::string_view text, std::int64_t most);

// "64K,1M,1G", in the order given. Throws Error(kInvalid), which names `option`.
std::vector<std::int64_t> parse_sizes(const char* option, const std::string& text, std::int64_t most);

}  // namespace primus
