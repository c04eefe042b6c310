#include "lm/reward/number_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "lm/reward/answer_text.h"

namespace primus {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Replaces spellings of LaTeX and Unicode by ASCII: "\frac{1}{2}" by "1/2", "1{,}000" and "1\,000" by
// "1,000", the minus sign U+2212 by "-", "\%" by "%", "\$" by "$".
std::string plain_spelling(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  const auto skip = [&text](std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  while (!text.empty()) {
    if (skip("{,}") || skip("\\,") || skip("\\!")) {
      result += ',';
    } else if (skip("\u2212")) {
      result += '-';
    } else if (skip("\\%") || skip("\uFF05")) {
      result += '%';
    } else if (skip("\\$")) {
      result += '$';
    } else if (skip("\\frac{") || skip("\\dfrac{") || skip("\\tfrac{")) {
      const std::size_t top = text.find_first_of("{}");
      const bool whole = top != std::string_view::npos && text.substr(top).starts_with("}{");
      if (!whole) continue;
      result += text.substr(0, top);
      result += '/';
      text.remove_prefix(top + 2);
      // The closing brace of the denominator remains, and ends the number.
    } else {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

struct Scanned {
  std::string digits;  // the number as from_chars reads it
  bool whole = false;  // whether there is neither a point nor an exponent
  std::size_t end = 0;
};

// Reads an unsigned decimal number at `at`, which is a digit, or a point before a digit.
Scanned scan_decimal(std::string_view text, std::size_t at) {
  Scanned number;
  number.whole = true;
  const auto digits = [&] {
    const std::size_t begin = at;
    while (at < text.size() && is_digit(text[at])) number.digits += text[at++];
    return at - begin;
  };
  const auto group_follows = [&] {
    return at + 3 < text.size() && text[at] == ',' && is_digit(text[at + 1]) && is_digit(text[at + 2]) &&
           is_digit(text[at + 3]) && !(at + 4 < text.size() && is_digit(text[at + 4]));
  };
  if (const std::size_t leading = digits(); leading >= 1 && leading <= 3) {
    while (group_follows()) {
      ++at;
      digits();
    }
  }
  if (at + 1 < text.size() && text[at] == '.' && is_digit(text[at + 1])) {
    number.whole = false;
    number.digits += text[at++];
    digits();
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t exponent = at + 1;
    if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    if (exponent < text.size() && is_digit(text[exponent])) {
      number.whole = false;
      number.digits += 'e';
      if (text[exponent - 1] == '-') number.digits += '-';
      at = exponent;
      digits();
    }
  }
  number.end = at;
  return number;
}

std::optional<double> value_of(const Scanned& number) {
  double value = 0;
  const char* const end = number.digits.data() + number.digits.size();
  const auto result = std::from_chars(number.digits.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string integer_of(const Scanned& number, bool negative) {
  const std::size_t first = std::min(number.digits.find_first_not_of('0'), number.digits.size() - 1);
  const std::string digits = number.digits.substr(first);
  return negative && digits != "0" ? "-" + digits : digits;
}

// Returns whether the number at `at` has a '-'. A currency sign may stand between them.
bool is_negative(std::string_view text, std::size_t at) {
  if (at > 0 && text[at - 1] == '$') --at;
  if (at == 0 || text[at - 1] != '-') return false;
  if (at == 1) return true;
  const char before = text[at - 2];
  return !is_letter(before) && !is_digit(before) && before != ')' && before != ']' && before != '}';
}

}  // namespace

std::optional<NumberInText> last_number(std::string_view source) {
  const std::string text = plain_spelling(source);
  std::optional<NumberInText> found;
  for (std::size_t at = 0; at < text.size();) {
    const bool starts = is_digit(text[at]) || (text[at] == '.' && at + 1 < text.size() &&
                                               is_digit(text[at + 1]) && !(at > 0 && is_digit(text[at - 1])));
    if (!starts) {
      ++at;
      continue;
    }
    const bool negative = is_negative(text, at);
    const Scanned number = scan_decimal(text, at);
    std::optional<double> value = value_of(number);
    NumberInText read;
    if (number.whole) read.integer = integer_of(number, negative);
    at = number.end;
    // A fraction: "1/2" or "1 / 2".
    std::size_t below = text.find_first_not_of(' ', at);
    if (value && below != std::string::npos && text[below] == '/') {
      below = text.find_first_not_of(' ', below + 1);
      if (below != std::string::npos && is_digit(text[below])) {
        const Scanned denominator = scan_decimal(text, below);
        const std::optional<double> divisor = value_of(denominator);
        value = divisor && *divisor != 0 ? std::optional(*value / *divisor) : std::nullopt;
        read.integer.clear();
        at = denominator.end;
      }
    }
    if (!value || !std::isfinite(*value)) {
      found.reset();  // this number is the last one, and has no value
      continue;
    }
    read.value = negative ? -*value : *value;
    const std::size_t next = text.find_first_not_of(' ', at);
    read.percent = next != std::string::npos && text[next] == '%';
    found = std::move(read);
  }
  return found;
}

std::optional<NumberInText> answer_number(std::string_view text) {
  return last_number(marked_answer(text).value_or(text));
}

bool equal_numbers(const NumberInText& a, const NumberInText& b) {
  constexpr double kTolerance = 1e-9;
  const auto close = [](double x, double y) {
    return x == y || std::abs(x - y) <= kTolerance * std::max(std::abs(x), std::abs(y));
  };
  constexpr std::size_t kExactDigits = 15;
  if (!a.integer.empty() && !b.integer.empty() &&
      std::max(a.integer.size(), b.integer.size()) > kExactDigits && a.percent == b.percent) {
    return a.integer == b.integer;
  }
  if (close(a.value, b.value)) return true;
  if (a.percent == b.percent) return false;
  return a.percent ? close(a.value / 100, b.value) : close(a.value, b.value / 100);
}

}  // namespace primus
