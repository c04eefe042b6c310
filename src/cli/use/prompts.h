// The prompts of `primus generate --prompts`: one JSON value per line, a string or an object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::cli {

struct PromptLine {
  std::string prompt;
  std::string id;  // JSON text copied to the result; empty: none
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> max_tokens;
  std::optional<std::string> adapter;  // name of the model that answers
  std::string place;                   // "name:line", for errors
};

// Parses lines {"prompt": "...", "id": any value, "seed": 7, "max_tokens": 20, "adapter": "NAME"}, where only
// the prompt is required, or lines with only the prompt as a string. Skips empty lines. Throws
// Error(kInvalid) at "name:line:column" for other lines, and for a file without prompts.
std::vector<PromptLine> parse_prompts(std::string_view text, const std::string& name);

}  // namespace primus::cli
