#include "lm/template/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "base/text/utf8.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

// The longest operators come first.
constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

// Returns the source with "\n" as line ends, and without one line end at the end of the template.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_digit(char c, int base = 10) {
  if (base <= 10) return c >= '0' && c < '0' + base;
  return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

// Decodes the escapes of a Python string literal.
class Unescaper {
 public:
  Unescaper(std::string_view text, int line) : text_(text), line_(line) {}

  std::string decode() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c != '\\' || at_ == text_.size())
        out_ += c;
      else
        escape(text_[at_++]);
    }
    return std::move(out_);
  }

 private:
  void escape(char c) {
    static constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
    if (const std::size_t found = kNames.find(c); found != std::string_view::npos)
      out_ += kCodes[found];
    else if (c == 'x' || c == 'u' || c == 'U')
      code_point(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    else if (is_digit(c, 8))
      octal(c);
    else if (c == 'N')
      fail_syntax("named characters (\\N{...}) are not supported", line_);
    else if (c != '\n')
      (out_ += '\\') += c;
  }
  void code_point(int digits) {
    std::uint32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (at_ >= text_.size() || !is_digit(text_[at_], 16))
        fail_syntax("truncated escape in a string", line_);
      code = code * 16 +
             static_cast<std::uint32_t>(BigInteger::parse(text_.substr(at_, 1), 16).to_int64().value_or(0));
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail_syntax("illegal Unicode character in a string", line_);
    unicode::append(code, out_);
  }
  void octal(char first) {
    std::uint32_t code = static_cast<std::uint32_t>(first - '0');
    for (int i = 0; i < 2 && at_ < text_.size() && is_digit(text_[at_], 8); ++i)
      code = code * 8 + static_cast<std::uint32_t>(text_[at_++] - '0');
    unicode::append(code, out_);
  }

  std::string_view text_;
  int line_;
  std::size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) data();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  char peek(std::size_t offset = 0) const { return at_ + offset < text_.size() ? text_[at_ + offset] : '\0'; }
  bool at(std::string_view part) const { return rest().starts_with(part); }
  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(first_character(rest()).code))
      advance(first_character(rest()).size);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), {}, line_}); }

  // Adds the text before a tag after removing the white space that the tag's sign or lstrip_blocks removes.
  void add_data(std::string_view text, char sign, bool is_variable) {
    const bool starts_line = line_starting_;
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && !is_variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || starts_line) && strip(text.substr(begin), true, false).empty())
        text = text.substr(0, begin);
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }
  void note_end(std::size_t end) { line_starting_ = end > 0 && text_[end - 1] == '\n'; }

  // Reads text up to the next tag, and that tag.
  void data() {
    std::size_t begin = at_;
    while (begin < text_.size() &&
           !(text_[begin] == '{' && begin + 1 < text_.size() &&
             std::string_view("%{#").find(text_[begin + 1]) != std::string_view::npos))
      ++begin;
    const std::string_view before = std::string_view(text_).substr(at_, begin - at_);
    if (begin == text_.size()) {
      if (!before.empty()) add(TokenKind::kData, std::string(before));
      advance(before.size());
      return;
    }
    const char kind = text_[begin + 1];
    const char sign = begin + 2 < text_.size() ? text_[begin + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    add_data(before, has_sign ? sign : '\0', kind == '{');
    advance(before.size());
    if (kind == '%' && raw()) return;
    advance(has_sign ? 3 : 2);
    note_end(at_);
    if (kind == '#') return comment();
    const bool is_block = kind == '%';
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    code(is_block);
  }

  // Consumes the end of a block or comment with its trimmed white space, if it is next.
  bool close_block(std::string_view end) {
    if (peek() == '+' && std::string_view(text_).substr(at_ + 1).starts_with(end)) {
      advance(1 + end.size());
    } else if (peek() == '-' && std::string_view(text_).substr(at_ + 1).starts_with(end)) {
      advance(1 + end.size());
      skip_space();
    } else if (at(end)) {
      advance(end.size());
      if (peek() == '\n') advance(1);
    } else {
      return false;
    }
    note_end(at_);
    return true;
  }

  void comment() {
    const int line = line_;
    while (at_ < text_.size()) {
      if (close_block("#}")) return;
      advance(1);
    }
    fail_syntax("Missing end of comment tag", line);
  }

  // If a raw block begins here, reads it as data.
  bool raw() {
    const std::size_t start = at_;
    const int start_line = line_;
    advance(2);
    if (peek() == '-' || peek() == '+') advance(1);
    skip_space();
    bool found = at("raw");
    if (found) {
      advance(3);
      skip_space();
      found = at("%}") || at("-%}");
    }
    if (!found) {
      at_ = start;
      line_ = start_line;
      return false;
    }
    const bool strips = peek() == '-';
    advance(strips ? 3 : 2);
    if (strips) skip_space();
    note_end(at_);
    raw_text(start_line);
    return true;
  }
  void raw_text(int line) {
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      if (!at("{%")) {
        advance(1);
        continue;
      }
      const std::size_t end = at_;
      const int end_line = line_;
      advance(2);
      const char sign = peek() == '-' || peek() == '+' ? peek() : '\0';
      if (sign != '\0') advance(1);
      skip_space();
      if (at("endraw")) {
        advance(6);
        skip_space();
        const bool starts_line = line_starting_;
        if (close_block("%}")) {
          line_starting_ = starts_line;
          add_data(std::string_view(text_).substr(begin, end - begin), sign, false);
          note_end(at_);
          return;
        }
      }
      at_ = end + 2;
      line_ = end_line;
    }
    fail_syntax("Missing end of raw directive", line);
  }

  // Reads the tokens of a tag including its end.
  void code(bool is_block) {
    std::string open;  // closing brackets that are expected, the innermost last
    while (at_ < text_.size()) {
      if (open.empty()) {
        const int line = line_;
        if (is_block ? close_block("%}") : close_variable()) {
          tokens_.push_back({is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "", {}, line});
          return;
        }
      }
      if (is_space(first_character(rest()).code)) {
        skip_space();
      } else if (!number() && !name() && !string()) {
        sign(open);
      }
    }
    note_end(at_);
  }
  bool close_variable() {
    if (at("-}}")) {
      advance(3);
      skip_space();
    } else if (at("}}")) {
      advance(2);
    } else {
      return false;
    }
    note_end(at_);
    return true;
  }

  // Returns the length of digits with single underscores between them; 0 if there is no digit at `from`.
  std::size_t digits(std::size_t from, int base = 10) const {
    std::size_t end = from;
    while (is_digit(peek(end), base) || (end > from && peek(end) == '_' && is_digit(peek(end + 1), base)))
      ++end;
    return end - from;
  }
  bool number() {
    if (!is_digit(peek())) return false;
    std::size_t size = digits(0);
    bool is_float = false;
    if ((at_ == 0 || text_[at_ - 1] != '.')) {
      if (const std::size_t fraction = peek(size) == '.' ? digits(size + 1) : 0; fraction > 0) {
        size += 1 + fraction;
        is_float = true;
      }
      const std::size_t sign = peek(size + 1) == '+' || peek(size + 1) == '-' ? 1 : 0;
      if (const std::size_t power = (peek(size) | 0x20) == 'e' ? digits(size + 1 + sign) : 0; power > 0) {
        size += 1 + sign + power;
        is_float = true;
      }
    }
    if (is_float) {
      std::string literal(rest().substr(0, size));
      std::erase(literal, '_');
      add_number(size, Value::real(std::strtod(literal.c_str(), nullptr)));
    } else {
      integer();
    }
    return true;
  }
  void integer() {
    const char kind = peek() == '0' ? static_cast<char>(peek(1) | 0x20) : '\0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    std::size_t front = base == 10 ? 0 : 2;
    if (front > 0 && peek(front) == '_') ++front;
    std::size_t size = digits(front, base);
    if (size == 0) front = 0;
    if (front == 0) size = peek() == '0' ? 1 : digits(0);
    for (;
         front == 0 && peek() == '0' && (peek(size) == '0' || (peek(size) == '_' && peek(size + 1) == '0'));)
      ++size;
    std::string literal(rest().substr(front, size));
    std::erase(literal, '_');
    if (literal.size() > BigInteger::kMaxDigits) fail_syntax("an integer has too many digits", line_);
    add_number(front + size, Value::integer(BigInteger::parse(literal, front == 0 ? 10 : base)));
  }
  void add_number(std::size_t size, const Value& value) {
    tokens_.push_back({TokenKind::kNumber, std::string(rest().substr(0, size)), value, line_});
    advance(size);
  }

  bool name() {
    std::size_t size = 0;
    while (at_ + size < text_.size()) {
      const Character c = first_character(rest().substr(size));
      if (!is_word(c.code)) break;
      size += c.size;
    }
    if (size == 0) return false;
    add(TokenKind::kName, std::string(rest().substr(0, size)));
    advance(size);
    return true;
  }
  bool string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = 1;
    while (at_ + end < text_.size() && peek(end) != quote) end += peek(end) == '\\' ? 2 : 1;
    if (at_ + end >= text_.size()) return false;
    add(TokenKind::kString, Unescaper(rest().substr(1, end - 1), line_).decode());
    advance(end + 1);
    return true;
  }
  void sign(std::string& open) {
    const auto* const found =
        std::ranges::find_if(kOperators, [&](std::string_view sign) { return at(sign); });
    if (found == kOperators.end()) {
      const std::string_view before = std::string_view(text_).substr(0, at_);
      const auto position = std::ranges::count_if(
          before, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
      fail_syntax(fmt::format("unexpected char {} at {}",
                              repr_of_text(rest().substr(0, first_character(rest()).size)), position),
                  line_);
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_syntax(fmt::format("unexpected '{}'", c), line_);
      if (open.back() != c) fail_syntax(fmt::format("unexpected '{}', expected '{}'", c, open.back()), line_);
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(*found));
    advance(found->size());
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // whether the previous token ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kString:
      return "string";
    case TokenKind::kNumber:
      return token.number.is(Type::kFloat) ? "float" : "integer";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return token.text;
    case TokenKind::kEnd:
      return "end of template";
  }
  return "";
}

void fail_syntax(const std::string& message, int line, const char* type) {
  Failure failure(type, message);
  failure.at(fmt::format("chat template:{}", line));
  throw failure;
}

std::vector<Token> tokenize(std::string_view source) {
  if (const std::size_t valid = unicode::valid_prefix(source); valid != source.size())
    fail_syntax(fmt::format("byte {} of the template is not UTF-8", valid), 1);
  return Lexer(source).run();
}

}  // namespace primus::jinja
