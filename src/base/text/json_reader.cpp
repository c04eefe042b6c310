#include "base/text/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text/utf8.h"

namespace primus {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the length of the prefix without quotes, backslashes and control characters; scans eight bytes at a
// time.
std::size_t plain_prefix(const char* p, std::size_t size) {
  std::size_t i = 0;
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  constexpr std::uint64_t kHighs = 0x8080808080808080u;
  for (; i + 8 <= size; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, p + i, 8);
    const auto zero_bytes = [](std::uint64_t w) { return (w - kOnes) & ~w & kHighs; };
    const std::uint64_t stops = zero_bytes(word ^ kOnes * '"') | zero_bytes(word ^ kOnes * '\\') |
                                ((word - kOnes * 0x20) & ~word & kHighs);
    // The lowest set bit marks the first quote, backslash or control character. Higher bits may be wrong,
    // because the borrow of a subtraction propagates to them.
    if (stops != 0) return i + static_cast<std::size_t>(std::countr_zero(stops)) / 8;
  }
  while (i < size && p[i] != '"' && p[i] != '\\' && static_cast<unsigned char>(p[i]) >= 0x20) ++i;
  return i;
}

}  // namespace

std::string JsonReader::place(std::size_t at) const {
  const std::string_view before = text_.substr(0, std::min(at, text_.size()));
  const std::int64_t line = options_.first_line + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("{}:{}:{}", name_, line, at - line_start + 1);
}

void JsonReader::fail_at(std::string_view what, std::size_t at) const {
  throw invalid(fmt::format("broken JSON: {}", what), std::string(options_.hint)).at(place(at));
}

void JsonReader::refuse(std::string_view what) const {
  throw invalid(std::string(what), std::string(options_.hint)).at(place(at_));
}

char JsonReader::next_character() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++at_;
  }
  return '\0';
}

void JsonReader::expect(char c, std::string_view what) {
  if (next_character() != c || at_ == text_.size()) fail(what);
  ++at_;
}

JsonReader::Kind JsonReader::peek() {
  const char c = next_character();
  switch (c) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
      return Kind::kBool;
    case 'n':
      return Kind::kNull;
    case '-':
      return Kind::kNumber;
    default:
      if (is_digit(c) || (options_.python && (c == 'N' || c == 'I'))) return Kind::kNumber;
      if (text_.substr(at_).starts_with("\xEF\xBB\xBF")) fail("unexpected byte-order mark here");
      fail(at_ == text_.size() ? "the text ends, but a value is expected" : "a value is expected here");
  }
}

void JsonReader::require(Kind kind, std::string_view what, std::string_view key) {
  constexpr std::string_view kNames[] = {"an object", "a list",        "a string",
                                         "a number",  "a truth value", "null"};
  const Kind found = peek();
  if (found == kind) return;
  const std::size_t start = at_;
  skip();  // reports a syntax error in the value itself
  throw invalid(fmt::format("{}{} is {}, not {}", what, key.empty() ? "" : fmt::format(" '{}'", key),
                            kNames[static_cast<std::size_t>(found)], kNames[static_cast<std::size_t>(kind)]),
                std::string(options_.hint))
      .at(place(start));
}

void JsonReader::begin_object() {
  expect('{', "an object is expected here");
  if (++depth_ > kMaxDepth) fail("nested too deeply");
  first_item_ = true;
}

void JsonReader::begin_array() {
  expect('[', "an array is expected here");
  if (++depth_ > kMaxDepth) fail("nested too deeply");
  first_item_ = true;
}

bool JsonReader::next_item(char close) {
  const char c = next_character();
  const bool first = std::exchange(first_item_, false);
  if (c == close) {
    ++at_;
    --depth_;
    return false;
  }
  if (!first) {
    if (c != ',') fail(fmt::format("',' or '{}' is expected here", close));
    ++at_;
    if (next_character() == close) fail("a value is expected after the comma");
  }
  if (next_character() == '\0' && at_ == text_.size()) fail(fmt::format("'{}' is missing", close));
  return true;
}

bool JsonReader::next_element() { return next_item(']'); }

bool JsonReader::next_key(std::string& key) {
  if (!next_item('}')) return false;
  if (next_character() != '"') fail("a key in quotes is expected here");
  key.clear();
  scan_string(&key, kMaxKeyBytes);
  expect(':', "':' is expected after the key");
  return true;
}

void JsonReader::read_string(std::string& out) {
  if (next_character() != '"') fail("a string is expected here");
  out.clear();
  scan_string(&out);
}

std::string JsonReader::read_string() {
  std::string out;
  read_string(out);
  return out;
}

void JsonReader::scan_string(std::string* out, std::size_t limit) {
  const std::size_t start = at_++;
  while (true) {
    const std::size_t plain = plain_prefix(text_.data() + at_, text_.size() - at_);
    const std::string_view part = text_.substr(at_, plain);
    const std::size_t valid = unicode::valid_prefix(part);
    if (valid != part.size()) fail_at("a string with bytes that are not UTF-8", at_ + valid);
    if (out != nullptr) out->append(part);
    at_ += plain;
    if (at_ - start > limit) fail_at("a key of more than a megabyte", start);
    if (at_ == text_.size()) fail_at("a string without its closing quote", start);
    const char c = text_[at_++];
    if (c == '"') return;
    if (c != '\\') fail_at("a control character inside a string", at_ - 1);
    append_escape(out);
  }
}

void JsonReader::append_escape(std::string* out) {
  if (at_ == text_.size()) fail("a string without its closing quote");
  const std::size_t start = at_ - 1;
  const char escaped = text_[at_++];
  char32_t c;
  switch (escaped) {
    case '"':
    case '\\':
    case '/':
      c = static_cast<char32_t>(escaped);
      break;
    case 'b':
      c = '\b';
      break;
    case 'f':
      c = '\f';
      break;
    case 'n':
      c = '\n';
      break;
    case 'r':
      c = '\r';
      break;
    case 't':
      c = '\t';
      break;
    case 'u': {
      c = read_hex4();
      if (c >= 0xD800 && c < 0xDC00 && text_.substr(at_, 2) == "\\u") {
        const std::size_t second = at_;
        at_ += 2;
        const char32_t low = read_hex4();
        if (low >= 0xDC00 && low < 0xE000) {
          c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        } else {
          at_ = second;
        }
      }
      if (c >= 0xD800 && c < 0xE000) {
        if (out == nullptr && options_.python) return;
        fail_at(fmt::format("\\u{:04x} is only half of a surrogate pair", std::uint32_t{c}), start);
      }
      break;
    }
    default:
      fail_at("an unknown escape sequence", start);
  }
  if (out != nullptr) unicode::append(c, *out);
}

std::uint32_t JsonReader::read_hex4() {
  std::uint32_t value = 0;
  const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 4 || result.ec != std::errc() || result.ptr != digits.data() + 4) {
    fail("\\u needs four hexadecimal digits");
  }
  at_ += 4;
  return value;
}

std::string_view JsonReader::scan_number() {
  next_character();
  const std::size_t start = at_;
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
    if (!options_.python || !text_.substr(at_).starts_with(word)) continue;
    at_ += word.size();
    return text_.substr(start, word.size());
  }
  const auto digits = [this] {
    const std::size_t before = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ - before;
  };
  if (text_.substr(at_).starts_with('-')) ++at_;
  const bool zero = text_.substr(at_).starts_with('0');
  const std::size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) fail_at("not a number", start);
  if (text_.substr(at_).starts_with('.')) {
    ++at_;
    if (digits() == 0) fail_at("not a number", start);
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    if (digits() == 0) fail_at("not a number", start);
  }
  return text_.substr(start, at_ - start);
}

template <typename Integer>
Integer JsonReader::read_whole(std::string_view what) {
  if (peek() != Kind::kNumber) fail("a number is expected here");
  const std::size_t start = at_;
  const std::string_view digits = scan_number();
  Integer value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) fail_at(what, start);
  return value;
}

std::int64_t JsonReader::read_int() {
  return read_whole<std::int64_t>("an integer between -2^63 and 2^63 - 1 is expected here");
}

std::uint64_t JsonReader::read_unsigned() {
  return read_whole<std::uint64_t>("a whole number from 0 to below 2^64 is expected here");
}

std::int64_t JsonReader::read_size() {
  constexpr std::string_view kWhat = "a whole number from 0 to below 2^63 is expected here";
  if (peek() == Kind::kNumber && text_[at_] == '-') fail(kWhat);
  return read_whole<std::int64_t>(kWhat);
}

double JsonReader::read_double() {
  if (peek() != Kind::kNumber) fail("a number is expected here");
  const std::size_t start = at_;
  const std::string_view digits = scan_number();
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc()) fail_at("a number in the range of a double is expected here", start);
  return value;
}

bool JsonReader::read_bool() {
  next_character();
  for (const bool value : {true, false}) {
    const std::string_view word = value ? "true" : "false";
    if (!text_.substr(at_).starts_with(word)) continue;
    at_ += word.size();
    return value;
  }
  fail("true or false is expected here");
}

bool JsonReader::read_null() {
  next_character();
  if (!text_.substr(at_).starts_with("null")) return false;
  at_ += 4;
  return true;
}

std::string_view JsonReader::skip() {
  next_character();
  const std::size_t start = at_;
  std::uint64_t is_object[2] = {};  // one bit per open bracket
  static_assert(kMaxDepth <= 128);
  const int outer = depth_;
  while (true) {
    switch (peek()) {
      case Kind::kString:
        scan_string(nullptr);
        break;
      case Kind::kNumber:
        scan_number();
        break;
      case Kind::kBool:
        read_bool();
        break;
      case Kind::kNull:
        if (!read_null()) fail("a value is expected here");
        break;
      case Kind::kObject:
        begin_object();
        is_object[(depth_ - 1) / 64] |= std::uint64_t{1} << ((depth_ - 1) % 64);
        break;
      case Kind::kArray:
        begin_array();
        is_object[(depth_ - 1) / 64] &= ~(std::uint64_t{1} << ((depth_ - 1) % 64));
        break;
    }
    // Closes all brackets that end at this position. After these brackets, the value is complete or another
    // value follows.
    bool more = false;
    while (!more && depth_ > outer) {
      const int level = depth_ - 1;
      if ((is_object[level / 64] >> (level % 64) & 1) == 0) {
        more = next_element();
      } else if ((more = next_item('}'))) {
        if (next_character() != '"') fail("a key in quotes is expected here");
        scan_string(nullptr, kMaxKeyBytes);
        expect(':', "':' is expected after the key");
      }
    }
    if (!more) return text_.substr(start, at_ - start);
  }
}

void JsonReader::finish() {
  if (next_character() != '\0' || at_ != text_.size()) fail("unexpected text after the end");
}

}  // namespace primus
