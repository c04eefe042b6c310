// Finds the parts of an answer that rewards compare. Pure functions; time and memory are linear in the text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lm/reward/reward.h"

namespace primus {

// Returns `text` without white space (ASCII) at its ends.
std::string_view trimmed(std::string_view text);

// Returns the part after the last "</think>", or all of the text if it has no such tag. A text that begins
// with "<think>" and does not close it has an empty answer.
std::string_view after_thoughts(std::string_view completion);

// Returns the final answer in `text`, trimmed: the last of \boxed{...} with balanced braces; else the line
// after the last "####"; else the line after the last "the answer is" (any case). Returns nullopt if the text
// has none of them.
std::optional<std::string_view> marked_answer(std::string_view text);

// Returns the content of the last block between ``` lines, without its language. Returns nullopt if the text
// has no such block. A block that is not closed ends with the text.
std::optional<std::string_view> last_code_block(std::string_view text);

// A column of a record, or the reason why it cannot be used.
struct ColumnText {
  std::optional<std::string> text;
  std::string problem;
};
// Returns a column's text. A number or a Boolean is returned as JSON text. Null, a list, an object or a
// missing column is a problem.
ColumnText column_text(const ScoredAnswer& answer, const std::string& column);
// Returns the value of a column, of any type. If it is missing or null, returns nullptr and sets `problem`.
const nlohmann::json* find_column(const ScoredAnswer& answer, const std::string& column,
                                  std::string& problem);

}  // namespace primus
