#include "config/formats/yaml_indentation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace primus::config {
namespace {

struct Line {
  std::size_t indent = 0;           // indentation of the content, after any "- "
  std::vector<std::size_t> dashes;  // columns of the "- " before the content
  bool has_key = false;             // the content is "key:" or "key: value"
  bool has_value = false;           // the key's value is on the same line
  bool opens_text = false;          // the value is | or >: a block of text follows
  bool opens_quote = false;         // the value begins with a quote that is not closed on this line
  bool in_brackets = false;  // the line ends inside [ ] or { }, so the next lines may have any indentation
};

// Returns the start of the value in `text`, after a ": " or final ":" that is not in quotes or a comment.
std::size_t end_of_key(std::string_view text) {
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
      continue;
    }
    if ((c == '"' || c == '\'') && i == 0) quote = c;
    if (c == '#' && i > 0 && text[i - 1] == ' ') return std::string_view::npos;
    if (c == ':' && (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\t')) return i + 1;
  }
  return std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

// Parses a line that is neither blank nor a comment.
Line parse_line(std::string_view text) {
  Line line;
  std::size_t at = std::min(text.find_first_not_of(' '), text.size());
  while (at + 1 < text.size() && text[at] == '-' && text[at + 1] == ' ') {
    line.dashes.push_back(at);
    at = std::min(text.find_first_not_of(' ', at + 1), text.size());
  }
  line.indent = at;
  const std::string_view said = text.substr(at);
  const std::size_t key_end = end_of_key(said);
  line.has_key = key_end != std::string_view::npos;
  std::string_view value = line.has_key ? trimmed(said.substr(key_end)) : std::string_view();
  if (value.starts_with('#')) value = {};
  // If the line ends after an anchor, the value is on the next line.
  if (value.starts_with('&') && value.find(' ') == std::string_view::npos) value = {};
  line.has_value = !value.empty();
  line.opens_text = value.starts_with('|') || value.starts_with('>');
  const bool quoted = value.starts_with('"') || value.starts_with('\'');
  line.opens_quote = quoted && value.find(value.front(), 1) == std::string_view::npos;
  const auto count = [&](std::string_view of) {
    return std::count_if(said.begin(), said.end(),
                         [&](char c) { return of.find(c) != std::string_view::npos; });
  };
  line.in_brackets = count("[{") != count("]}");
  return line;
}

// Returns the hint for a line that lacks a colon followed by a blank.
std::string hint_without_key(std::string_view said) {
  const std::size_t colon = said.find(':');
  if (colon != std::string_view::npos && colon > 0) {
    return fmt::format("put a space after the colon: {}: {}", said.substr(0, colon), said.substr(colon + 1));
  }
  const std::size_t blank = said.find(' ');
  if (blank == std::string_view::npos) return fmt::format("give it a value: {}: VALUE", said);
  return fmt::format("put a colon after the key: {}: {}", said.substr(0, blank), trimmed(said.substr(blank)));
}

}  // namespace

void refuse_bad_line(const std::shared_ptr<const Source>& source, int line) {
  std::vector<std::size_t> open;  // indentations that later lines may return to
  const std::string_view text = source->text;
  int number = 0, last_number = 0;
  Line last;
  for (std::size_t begin = 0; begin < text.size() && number < line;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view whole = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const std::string_view said = trimmed(whole);
    if (said.empty() || said.starts_with('#') || said.starts_with("---")) continue;
    const std::size_t blank = whole.find_first_not_of(" ");
    if (blank != std::string_view::npos && whole[blank] == '\t') {
      throw error_at({source, number, static_cast<int>(blank) + 1, {}},
                     "this is not valid YAML: the line is indented with a tab",
                     "indent with spaces, two for each level");
    }
    const Line now = parse_line(whole);
    // After a line that opens a block of text, a quote or a bracket, any indentation is valid.
    if (now.opens_text || now.opens_quote || now.in_brackets) return;
    if (!now.has_key && now.dashes.empty()) {
      // A line with a deeper indentation than the key above continues that key's text.
      if (!last.has_key || now.indent > last.indent) continue;
      throw error_at({source, number, static_cast<int>(now.indent) + 1, {}},
                     "this is not valid YAML: the line is not 'key: value'", hint_without_key(said));
    }
    const std::size_t begins = now.dashes.empty() ? now.indent : now.dashes.front();
    const Origin here{source, number, static_cast<int>(begins) + 1, {}};
    if (!open.empty()) {
      const bool deeper = begins > open.back();
      if (deeper && now.has_key && last.has_key && last.has_value) {
        throw error_at(
            here,
            fmt::format(
                "this is not valid YAML: the line is indented deeper than line {}, which already has a value",
                last_number),
            fmt::format("indent it by {} spaces, as line {}", open.back(), last_number));
      }
      while (!open.empty() && open.back() > begins) open.pop_back();
      const bool known = !open.empty() && open.back() == begins;
      if (!deeper && !known) {
        throw error_at(
            here, "this is not valid YAML: the indentation of this line does not match any line above it",
            open.empty() ? "indent it as the lines above it"
                         : fmt::format("indent it by {} spaces, or as the lines above", open.back()));
      }
    }
    if (open.empty() || open.back() < begins) open.push_back(begins);
    for (std::size_t dash : now.dashes) {
      if (open.back() < dash) open.push_back(dash);
    }
    if (open.back() < now.indent) open.push_back(now.indent);
    last = now;
    last_number = number;
  }
}

}  // namespace primus::config
