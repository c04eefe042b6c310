#include "lm/reward/answer_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/terminal/terminal.h"
#include "base/text/json_text.h"

namespace primus {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\f\v";

std::string_view line_at(std::string_view text, std::size_t begin) {
  return trimmed(text.substr(begin, text.find('\n', begin) - begin));
}

// Returns the content of the last \boxed{...} with balanced braces. Reads the text once, with a stack of the
// positions of open braces.
std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kStart = "\\boxed{";
  std::optional<std::string_view> found;
  std::vector<std::size_t> open;
  std::size_t outer = std::string_view::npos;  // the content of the outermost open box
  std::size_t outer_depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && text.substr(i).starts_with(kStart)) {
      i += kStart.size() - 1;
      open.push_back(i);
      if (outer == std::string_view::npos) {
        outer = i + 1;
        outer_depth = open.size();
      }
    } else if (text[i] == '\\') {
      ++i;  // skips an escaped brace
    } else if (text[i] == '{') {
      open.push_back(i);
    } else if (text[i] == '}' && !open.empty()) {
      if (outer != std::string_view::npos && open.size() == outer_depth) {
        found = trimmed(text.substr(outer, i - outer));
        outer = std::string_view::npos;
      }
      open.pop_back();
    }
  }
  return found;
}

bool equal_ignoring_case(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

std::string_view after_thoughts(std::string_view completion) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const std::size_t close = completion.rfind(kClose);
  if (close != std::string_view::npos) return completion.substr(close + kClose.size());
  return trimmed(completion).starts_with(kOpen) ? std::string_view() : completion;
}

std::optional<std::string_view> marked_answer(std::string_view text) {
  if (const auto boxed = last_boxed(text)) return boxed;
  constexpr std::string_view kHashes = "####", kPhrase = "the answer is";
  if (const std::size_t hashes = text.rfind(kHashes); hashes != std::string_view::npos) {
    return line_at(text, hashes + kHashes.size());
  }
  const auto phrase =
      std::find_end(text.begin(), text.end(), kPhrase.begin(), kPhrase.end(), equal_ignoring_case);
  if (phrase == text.end()) return std::nullopt;
  std::string_view line = line_at(text, static_cast<std::size_t>(phrase - text.begin()) + kPhrase.size());
  if (line.starts_with(':')) line = trimmed(line.substr(1));
  return line;
}

std::optional<std::string_view> last_code_block(std::string_view text) {
  constexpr std::string_view kFence = "```";
  std::optional<std::string_view> found;
  std::size_t content = std::string_view::npos;  // the start of the open block's content
  for (std::size_t line = 0; line < text.size();) {
    const std::size_t end = std::min(text.find('\n', line), text.size());
    if (trimmed(text.substr(line, end - line)).starts_with(kFence)) {
      if (content == std::string_view::npos) {
        content = std::min(end + 1, text.size());
      } else {
        found = text.substr(content, line - content);
        content = std::string_view::npos;
      }
    }
    line = end + 1;
  }
  if (content != std::string_view::npos) found = text.substr(content);
  return found;
}

const nlohmann::json* find_column(const ScoredAnswer& answer, const std::string& column,
                                  std::string& problem) {
  const auto found = answer.record->is_object() ? answer.record->find(column) : answer.record->end();
  if (found == answer.record->end()) {
    problem = fmt::format("the record has no column '{}'", printable(column));
    return nullptr;
  }
  if (found->is_null()) {
    problem = fmt::format("the column '{}' is null", printable(column));
    return nullptr;
  }
  return &*found;
}

ColumnText column_text(const ScoredAnswer& answer, const std::string& column) {
  ColumnText result;
  const nlohmann::json* const value = find_column(answer, column, result.problem);
  if (value == nullptr) return result;
  if (value->is_string()) {
    result.text = value->get<std::string>();
  } else if (value->is_structured()) {
    result.problem = fmt::format("the column '{}' is {}, and must be text or a number", printable(column),
                                 value->is_array() ? "a list" : "an object");
  } else {
    result.text = json_text(*value, -1);
  }
  return result;
}

}  // namespace primus
