#include "lm/template/python_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/text/utf8.h"

namespace primus::jinja {
namespace {

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Returns whether str.splitlines ends a line after this character. The caller treats "\r\n" as one line end.
bool ends_line(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

template <typename Change>
std::string changed(std::string_view text, Change change) {
  std::string result;
  result.reserve(text.size());
  each_character(text, [&](char32_t c, std::string_view) { change(c, result); });
  return result;
}

// The sharp s is the only frequent character whose upper case has two characters.
void append_upper(char32_t c, std::string& out, const char* sharp_s = "SS") {
  if (c == 0xDF)
    out += sharp_s;
  else
    unicode::append(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}
void append_lower(char32_t c, std::string& out) {
  if (c == 0x130)
    out += "i\u0307";
  else
    unicode::append(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= ' ');
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
bool is_printable(char32_t c) {
  if (c < 0x80) return c >= ' ' && c < 0x7f;
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}
bool is_alphabetic(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}
bool is_lower(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LL; }

Character first_character(std::string_view text) {
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &code);
  if (size <= 0) return {0xFFFD, 1};
  return {static_cast<char32_t>(code), static_cast<std::size_t>(size)};
}
Character last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return {first_character(text.substr(at)).code, text.size() - at};
}

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_space(first_character(text).code))
    text.remove_prefix(first_character(text).size);
  while (right && !text.empty() && is_space(last_character(text).code))
    text.remove_suffix(last_character(text).size);
  return text;
}
std::string_view strip(std::string_view text, std::string_view removed, bool left, bool right) {
  const auto is_removed = [&](std::string_view character) {
    return removed.find(character) != std::string_view::npos;
  };
  while (left && !text.empty() && is_removed(text.substr(0, first_character(text).size)))
    text.remove_prefix(first_character(text).size);
  while (right && !text.empty() && is_removed(text.substr(text.size() - last_character(text).size)))
    text.remove_suffix(last_character(text).size);
  return text;
}

std::string upper(std::string_view text) {
  return changed(text, [](char32_t c, std::string& out) { append_upper(c, out); });
}
std::string lower(std::string_view text) { return changed(text, append_lower); }
std::string casefold(std::string_view text) {
  return changed(text, [](char32_t c, std::string& out) {
    if (c == 0xDF)
      out += "ss";
    else
      append_lower(c, out);
  });
}
std::string swapcase(std::string_view text) {
  return changed(
      text, [](char32_t c, std::string& out) { is_upper(c) ? append_lower(c, out) : append_upper(c, out); });
}
std::string capitalize(std::string_view text) {
  return changed(text, [first = true](char32_t c, std::string& out) mutable {
    first ? append_upper(c, out, "Ss") : append_lower(c, out);
    first = false;
  });
}
std::string title(std::string_view text) {
  return changed(text, [in_word = false](char32_t c, std::string& out) mutable {
    in_word ? append_lower(c, out) : append_upper(c, out, "Ss");
    in_word = is_upper(c) || is_lower(c);
  });
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0, at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    std::size_t next = at + c.size;
    if (ends_line(c.code) || next == text.size()) {
      if (c.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      const std::size_t end = keep_ends || !ends_line(c.code) ? next : at;
      lines.push_back(text.substr(begin, end - begin));
      begin = next;
    }
    at = next;
  }
  return lines;
}

std::vector<std::string_view> split_words(std::string_view text, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> words;
  text = strip(text, !from_right, from_right);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<std::int64_t>(words.size()) >= limit) {
      words.push_back(strip(text, from_right, !from_right));
      if (words.back().empty()) words.pop_back();
      break;
    }
    std::size_t size = 0;
    while (size < text.size()) {
      const Character c = from_right ? last_character(text.substr(0, text.size() - size))
                                     : first_character(text.substr(size));
      if (is_space(c.code)) break;
      size += c.size;
    }
    words.push_back(from_right ? text.substr(text.size() - size) : text.substr(0, size));
    from_right ? text.remove_suffix(size) : text.remove_prefix(size);
    text = strip(text, !from_right, from_right);
  }
  if (from_right) std::ranges::reverse(words);
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t limit,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::size_t behind = at + separator.size();
    parts.push_back(from_right ? text.substr(behind) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(behind);
  }
  parts.push_back(text);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

}  // namespace primus::jinja
