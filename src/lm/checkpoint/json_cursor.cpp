#include "lm/checkpoint/json_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"

namespace primus {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::size_t end = std::min(text.size(), kShown);
  const auto within_character = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > 0 && end < text.size() && within_character()) --end;
  std::string shown;
  for (const char c : text.substr(0, end)) c == '\0' ? shown += "\\x00" : shown += c;
  return end < text.size() ? shown + "..." : shown;
}

void JsonCursor::fail(std::string_view message) const {
  throw invalid(fmt::format("{}: {} (byte {} of its JSON)", where_, message, at_),
                "the file is corrupt or was not written by a tool that keeps to the format; get it again");
}

void JsonCursor::space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

char JsonCursor::peek() {
  space();
  if (at_ == text_.size()) fail("ends in the middle of a value");
  return text_[at_];
}

void JsonCursor::expect(char c) {
  if (peek() != c) fail(fmt::format("'{}' expected", c));
  ++at_;
}

bool JsonCursor::next(char bracket, bool first) {
  if (peek() == bracket) {
    ++at_;
    return false;
  }
  if (!first) expect(',');
  return true;
}

void JsonCursor::end() {
  space();
  if (at_ != text_.size()) fail("text after the end of the JSON value");
}

std::string JsonCursor::string() {
  std::string out;
  read_string(&out);
  return out;
}

void JsonCursor::read_key() {
  key_.clear();
  read_string(&key_, kMaxKeyBytes);
}

void JsonCursor::read_string(std::string* out, std::size_t limit) {
  expect('"');
  const std::size_t start = at_;
  for (;;) {
    // Runs of plain characters are taken at once.
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"' || c == '\\' || c < 0x20) break;
      if (c < 0x80) {
        ++at_;
      } else {
        utf8();
      }
    }
    if (at_ - start > limit) fail("a name of more than a megabyte");
    if (out != nullptr) out->append(text_.substr(begin, at_ - begin));
    if (at_ == text_.size()) fail("a string that does not end");
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
    ++at_;
    if (c == '"') return;
    escape(out);
  }
}

// One character of more than one byte.
void JsonCursor::utf8() {
  int bad = 0;
  const int length = unicode::well_formed(text_.substr(at_, 4), bad);
  if (length == 0) fail("a string that is not UTF-8");
  at_ += static_cast<std::size_t>(length);
}

std::uint32_t JsonCursor::hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    std::uint32_t digit = 0;
    if (is_digit(c)) {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<std::uint32_t>(c - 'A' + 10);
    } else {
      fail("four hexadecimal digits expected after \\u");
    }
    value = value * 16 + digit;
  }
  return value;
}

// What follows a backslash.
void JsonCursor::escape(std::string* out) {
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  std::uint32_t code = 0;
  switch (c) {
    case '"':
    case '\\':
    case '/':
      code = static_cast<std::uint32_t>(c);
      break;
    case 'b':
      code = '\b';
      break;
    case 'f':
      code = '\f';
      break;
    case 'n':
      code = '\n';
      break;
    case 'r':
      code = '\r';
      break;
    case 't':
      code = '\t';
      break;
    case 'u': {
      code = hex4();
      if (code >= 0xd800 && code <= 0xdbff) {
        if (text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
        at_ += 2;
        const std::uint32_t low = hex4();
        if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else if (code >= 0xdc00 && code <= 0xdfff) {
        fail("half of a surrogate pair");
      }
      break;
    }
    default:
      fail("an unknown escape in a string");
  }
  if (out != nullptr) unicode::append(code, *out);
}

std::uint64_t JsonCursor::unsigned_number() {
  if (!is_digit(peek())) fail("a whole number that is not negative is expected");
  const std::size_t begin = at_;
  std::uint64_t value = 0;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (__builtin_mul_overflow(value, 10U, &value) || __builtin_add_overflow(value, digit, &value)) {
      fail("a number of 2^64 or more");
    }
  }
  if (text_[begin] == '0' && at_ - begin > 1) fail("a number that begins with 0");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) {
    fail("a whole number is expected");
  }
  return value;
}

std::int64_t JsonCursor::size_number() {
  const std::uint64_t value = unsigned_number();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail("a number of 2^63 or more");
  }
  return static_cast<std::int64_t>(value);
}

void JsonCursor::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("an unknown word");
  at_ += word.size();
}

void JsonCursor::skip_number() {
  const auto digits = [&] {
    if (at_ == text_.size() || !is_digit(text_[at_])) fail("a digit expected");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  if (text_[at_] == '-') ++at_;
  if (at_ < text_.size() && text_[at_] == '0') {
    ++at_;
  } else {
    digits();
  }
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
}

void JsonCursor::skip(int depth) {
  constexpr int kMaxDepth = 64;
  if (depth > kMaxDepth) fail("nested too deeply");
  switch (peek()) {
    case '{':
      object([&](std::string_view) { skip(depth + 1); });
      break;
    case '[':
      array([&] { skip(depth + 1); });
      break;
    case '"':
      read_string(nullptr);
      break;
    case 't':
      literal("true");
      break;
    case 'f':
      literal("false");
      break;
    case 'n':
      literal("null");
      break;
    default:
      if (peek() != '-' && !is_digit(peek())) fail("a value expected");
      skip_number();
  }
}

}  // namespace primus
