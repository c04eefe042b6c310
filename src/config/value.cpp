#include "config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "config/readers.h"

namespace primus::config {
namespace {

constexpr std::size_t kSnippetWidth = 100;  // characters of a long line shown around the caret

std::string_view line_of(const std::string& text, int line) {
  std::size_t begin = 0;
  for (int i = 1; i < line; ++i) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) return {};
    ++begin;
  }
  std::string_view rest = std::string_view(text).substr(begin);
  rest = rest.substr(0, rest.find('\n'));
  if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
  return rest;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::size_t count_characters(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_continuation));
}

// Returns the number of bytes in the first `characters` characters.
std::size_t bytes_of(std::string_view text, std::size_t characters) {
  std::size_t i = 0;
  while (i < text.size() && (characters > 0 || is_continuation(text[i]))) {
    if (!is_continuation(text[i])) --characters;
    ++i;
  }
  return i;
}

// Returns the column of `origin` in characters, from 1.
std::size_t character_column(const Origin& origin, std::string_view line) {
  const auto column = static_cast<std::size_t>(std::max(origin.column, 1));
  if (!origin.source->columns_in_bytes) return column;
  return count_characters(line.substr(0, column - 1)) + 1;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads digits with single underscores between them; appends them to `out` without the underscores.
std::size_t take_digits(std::string_view text, std::size_t i, std::string& out) {
  while (i < text.size()) {
    if (is_digit(text[i])) {
      out.push_back(text[i]);
    } else if (text[i] != '_' || i == 0 || !is_digit(text[i - 1]) || i + 1 >= text.size() ||
               !is_digit(text[i + 1])) {
      break;
    }
    ++i;
  }
  return i;
}

// Reads [-+]?digits[.digits][e[-+]digits] (YAML 1.2 core, with digit separators) into `value`.
bool parse_number(std::string_view text, Value& value) {
  std::string clean;
  std::size_t i = 0;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) {
    if (text[i] == '-') clean.push_back('-');
    ++i;
  }
  const std::size_t sign = clean.size();
  i = take_digits(text, i, clean);
  std::size_t digits = clean.size() - sign;
  // Treats 007 as text, because 007 is octal in YAML 1.1 and decimal in YAML 1.2.
  if (digits > 1 && clean[sign] == '0') return false;
  bool integer = true;
  if (i < text.size() && text[i] == '.') {
    integer = false;
    if (digits == 0) clean.push_back('0');
    clean.push_back('.');
    const std::size_t before = clean.size();
    i = take_digits(text, i + 1, clean);
    digits += clean.size() - before;
    if (clean.size() == before) clean.push_back('0');
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    integer = false;
    clean.push_back('e');
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) clean.push_back(text[i++]);
    const std::size_t before = clean.size();
    i = take_digits(text, i, clean);
    if (clean.size() == before) return false;
  }
  if (i != text.size()) return false;

  const char* end = clean.data() + clean.size();
  if (integer) {
    const auto [stop, error] = std::from_chars(clean.data(), end, value.integer);
    if (error == std::errc() && stop == end) {
      value.kind = Value::Kind::kInt;
      value.real = static_cast<double>(value.integer);
      return true;
    }
  }
  const auto [stop, error] = std::from_chars(clean.data(), end, value.real);
  if (stop != end) return false;
  if (error == std::errc::result_out_of_range) {
    // from_chars does not set a value that is out of range. Sets infinity or 0 instead, so that the key's
    // range check reports the value.
    const std::size_t exponent = clean.find("e-");
    value.real = exponent == std::string::npos ? HUGE_VAL : 0.0;
  }
  value.kind = Value::Kind::kFloat;
  return true;
}

// Converts a Python tuple "(1, 2)" to the list "[1, 2]"; returns "" if the text is not a tuple. Patterns such
// as "([0]*3+[1]*58)" are not tuples.
std::string list_of_tuple(std::string_view text) {
  if (text.size() < 3 || text.front() != '(' || text.back() != ')') return {};
  std::string_view inside = text.substr(1, text.size() - 2);
  const bool plain = inside.find(',') != std::string_view::npos &&
                     inside.find_first_of("()[]{}*&") == std::string_view::npos;
  if (!plain) return {};
  while (inside.ends_with(' ')) inside.remove_suffix(1);
  if (inside.ends_with(',')) inside.remove_suffix(1);
  return fmt::format("[{}]", inside);
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> forms) {
  return std::find(forms.begin(), forms.end(), text) != forms.end();
}

}  // namespace

std::string Origin::location() const {
  if (!source) return "default";
  if (!source->is_file || line < 1) return source->name;
  return fmt::format("{}:{}:{}", source->name, line, character_column(*this, line_of(source->text, line)));
}

std::string Origin::describe() const {
  return variable.empty() ? location() : location() + " (environment " + variable + ")";
}

std::string Origin::snippet(std::size_t length) const {
  if (!source || line < 1) return {};
  const std::string_view whole = line_of(source->text, line);
  std::size_t indent = std::min(character_column(*this, whole) - 1, count_characters(whole));
  std::string_view shown = whole;
  std::string_view lead, tail;
  if (indent > kSnippetWidth * 3 / 4) {
    const std::size_t skip = indent - kSnippetWidth / 2;
    shown.remove_prefix(bytes_of(shown, skip));
    indent -= skip;
    lead = "...";
  }
  if (const std::size_t keep = bytes_of(shown, kSnippetWidth); keep < shown.size()) {
    shown = shown.substr(0, keep);
    tail = "...";
  }
  std::string line_text(shown);
  for (char& c : line_text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  const std::size_t room = count_characters(shown) > indent ? count_characters(shown) - indent : 1;
  const std::string number = source->is_file ? std::to_string(line) : std::string();
  return fmt::format(" {} | {}{}{}\n {:{}} | {:{}}{}", number, lead, line_text, tail, "", number.size(), "",
                     lead.size() + indent, std::string(std::clamp<std::size_t>(length, 1, room), '^'));
}

Error error_at(const Origin& origin, std::string what, std::string hint, std::size_t length) {
  std::ranges::replace(what, '\0', ' ');  // as in show(): a zero byte would end the message
  Error error = invalid(std::move(what), std::move(hint));
  error.at(origin.location(), origin.snippet(length));
  return error;
}

const Member* Value::find_member(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

const Value* Value::find(std::string_view key) const {
  const Member* member = find_member(key);
  return member ? &member->value : nullptr;
}

void Value::set(std::string key, Origin key_origin, Value value) {
  kind = Kind::kMap;
  for (Member& member : members) {
    if (member.key != key) continue;
    member.origin = std::move(key_origin);
    member.value = std::move(value);
    return;
  }
  members.push_back({std::move(key), std::move(key_origin), std::move(value)});
}

std::string_view Value::kind_name() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "a value";
}

std::string Value::show() const {
  constexpr std::size_t kLongest = 40;
  if (kind == Kind::kNull) return "null";
  if (!is_scalar()) return std::string(kind_name());
  std::string shown = text.substr(0, bytes_of(text, kLongest));
  if (shown.size() < text.size()) shown += "...";
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return kind == Kind::kString ? "'" + shown + "'" : shown;
}

std::size_t Value::width() const {
  if (!is_scalar() || text.find('\n') != std::string::npos) return 1;
  return count_characters(text) + (quoted ? 2 : 0);
}

Value plain_scalar(std::string_view text, Origin origin) {
  Value value;
  value.origin = std::move(origin);
  value.text = std::string(text);
  if (is_one_of(text, {"", "~", "null", "Null", "NULL", "None"})) return value;
  if (is_one_of(text, {"true", "True", "TRUE", "false", "False", "FALSE"})) {
    value.kind = Value::Kind::kBool;
    value.boolean = text[0] == 't' || text[0] == 'T';
    return value;
  }
  const std::string_view unsigned_text = text[0] == '-' || text[0] == '+' ? text.substr(1) : text;
  if (is_one_of(unsigned_text, {".inf", ".Inf", ".INF"}) || is_one_of(text, {".nan", ".NaN", ".NAN"})) {
    value.kind = Value::Kind::kFloat;
    value.real = unsigned_text.back() == 'n' || unsigned_text.back() == 'N' ? std::nan("") : HUGE_VAL;
    if (text[0] == '-') value.real = -value.real;
    return value;
  }
  if (!parse_number(text, value)) value.kind = Value::Kind::kString;
  return value;
}

Value parse_inline(std::string_view text, const Origin& origin) {
  const bool is_quoted = text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  if (is_quoted) return read_yaml_inline(text, origin);
  // {word} is a map in YAML, but users mean text.
  const bool is_map = text.starts_with('{') && (text == "{}" || text.find(':') != std::string_view::npos);
  const bool is_collection = is_map || text.starts_with('[');
  const std::string list = is_collection ? std::string() : list_of_tuple(text);
  if (is_collection || !list.empty()) {
    try {
      return read_yaml_inline(list.empty() ? text : list, origin);
    } catch (const Error&) {
      // Text that only looks like a list or map stays text. Keys that do not accept text will report it.
    }
  }
  return plain_scalar(text, origin);
}

void merge(Value& base, const Value& over) {
  if (!base.is_map() || !over.is_map()) {
    base = over;
    return;
  }
  for (const Member& member : over.members) {
    const auto found = std::find_if(base.members.begin(), base.members.end(),
                                    [&](const Member& candidate) { return candidate.key == member.key; });
    if (found == base.members.end()) {
      base.members.push_back(member);
    } else {
      found->origin = member.origin;
      merge(found->value, member.value);
      if (member.value.origin.source) found->value.origin = member.value.origin;
    }
  }
}

}  // namespace primus::config
