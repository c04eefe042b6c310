// The prompts of `primus generate --prompts`: one JSON value per line, a string or a record of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/data/conversation.h"

namespace primus::cli {

struct PromptLine {
  // A prompt as text; if it is empty, generation starts with the begin-of-text token. Unset for the prompt of
  // `record`.
  std::optional<std::string> text;
  std::string record;  // JSON text of the line, if `text` is unset
  std::string id;      // JSON text copied to the result; empty: none
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> max_tokens;
  std::optional<std::string> adapter;  // name of the model that answers
  // The record's other keys and the JSON texts of their values, which the result repeats.
  std::vector<std::pair<std::string, std::string>> columns = {};
  std::string place;  // "name:line", for errors

  // Returns the turns of the prompt: those that training reads from the same record (lm/data/prompt.h).
  // Throws Error(kInvalid) at `place` for a record without a prompt, or whose members the format cannot
  // write.
  data::Conversation conversation(data::Members members) const;
};

// The keys of a result that columns do not replace.
inline constexpr std::string_view kResultKeys[] = {"index",          "id",     "adapter", "text",
                                                   "prompt_tokens",  "ids",    "seed",    "stop_reason",
                                                   "prompt_seconds", "seconds"};

// Parses lines {"prompt": "...", "id": any value, "seed": 7, "max_tokens": 20, "adapter": "NAME", ...}, where
// only a prompt is required, or lines with only the prompt as a string. Skips empty lines. Throws
// Error(kInvalid) at "name:line:column" for other lines, and for a file without prompts.
std::vector<PromptLine> parse_prompts(std::string_view text, const std::string& name);

}  // namespace primus::cli
