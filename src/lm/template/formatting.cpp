// Python's string formatting: text % values, text.format(...) and format(value, specification).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

constexpr std::int64_t kMaxPrecision = 400;

// A format specification: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct Specification {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  std::int64_t width = 0, precision = -1;
  char grouping = '\0';
  char type = '\0';
};

std::int64_t read_number(std::string_view& text) {
  std::int64_t value = 0;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    value = std::min<std::int64_t>(value * 10 + (text.front() - '0'), 1'000'000'000);
    text.remove_prefix(1);
  }
  return value;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

Specification parse_specification(std::string_view text) {
  Specification spec;
  if (!text.empty()) {
    const std::size_t size = first_character(text).size;
    if (text.size() > size && is_align(text[size])) {
      spec.fill = text.substr(0, size);
      spec.align = text[size];
      text.remove_prefix(size + 1);
    } else if (is_align(text.front())) {
      spec.align = text.front();
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any) {
    if (text.empty() || any.find(text.front()) == std::string_view::npos) return '\0';
    const char c = text.front();
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (take("0") != '\0' && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_number(text);
  spec.grouping = take(",_");
  if (take(".") != '\0') spec.precision = read_number(text);
  if (text.size() > 1) throw Failure("ValueError", "Invalid format specifier");
  if (!text.empty()) spec.type = text.front();
  return spec;
}

// Returns the sign and the body, padded to the width. `body` has no sign.
std::string padded(Interpreter& run, const Specification& spec, std::string_view sign, std::string_view body,
                   char default_align) {
  const auto length = static_cast<std::int64_t>(
      std::ranges::count_if(body, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  const std::int64_t missing =
      std::max<std::int64_t>(spec.width - length - static_cast<std::int64_t>(sign.size()), 0);
  run.budget().take_product(missing, static_cast<std::int64_t>(spec.fill.size()));
  std::string left, right;
  const char align = spec.align == '\0' ? default_align : spec.align;
  const std::int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  for (std::int64_t i = 0; i < before; ++i) left += spec.fill;
  for (std::int64_t i = before; i < missing; ++i) right += spec.fill;
  if (align == '=') return fmt::format("{}{}{}", sign, left, body);
  return fmt::format("{}{}{}{}", left, sign, body, right);
}

std::string grouped(std::string digits, char separator, std::size_t every = 3) {
  const std::size_t end = std::min(digits.find_first_of(".e%"), digits.size());
  for (std::size_t at = end; at > every;) digits.insert(at -= every, 1, separator);
  return digits;
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '-' ? "" : std::string(1, sign);
}

// Returns the digits of a finite or infinite number >= 0 for the types e, f, g, % and their capitals.
std::string float_digits(double value, char type, std::int64_t precision, bool alternate) {
  if (!std::isfinite(value)) {
    const std::string text = std::isnan(value) ? "nan" : "inf";
    return type >= 'A' && type <= 'Z' ? upper(text) : text;
  }
  if (precision > kMaxPrecision) throw Failure("ValueError", "the precision is too large");
  const bool percent = type == '%';
  const std::string pattern =
      fmt::format("%{}.{}{}", alternate ? "#" : "", precision < 0 ? 6 : precision, percent ? 'f' : type);
  char buffer[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int size = std::snprintf(buffer, sizeof buffer, pattern.c_str(), percent ? value * 100 : value);
#pragma GCC diagnostic pop
  return std::string(buffer, static_cast<std::size_t>(size)) + (percent ? "%" : "");
}

// Returns the digits in base 2, 8 or 16.
std::string based_digits(const BigInteger& magnitude, char type) {
  const int base = type == 'b' ? 2 : type == 'o' ? 8 : 16;
  std::string digits;
  BigInteger rest = magnitude;
  do {
    const auto [quotient, digit] = BigInteger::floor_divide(rest, BigInteger(base));
    digits += "0123456789abcdef"[digit.to_int64().value_or(0)];
    rest = quotient;
  } while (!rest.is_zero());
  std::ranges::reverse(digits);
  return type == 'X' ? upper(digits) : digits;
}

std::string prefix_of(const Specification& spec) {
  return spec.alternate && std::string_view("boxX").find(spec.type) != std::string_view::npos
             ? fmt::format("0{}", spec.type)
             : "";
}

std::string format_integer(Interpreter& run, const Value& value, const Specification& spec) {
  run.budget().take_steps(256);
  const BigInteger number = value.big();
  const BigInteger magnitude = number.negative() ? -number : number;
  std::string digits;
  switch (spec.type) {
    case '\0':
    case 'd':
    case 'n':
      digits = magnitude.str();
      break;
    case 'b':
    case 'o':
    case 'x':
    case 'X':
      run.budget().take_steps(static_cast<std::int64_t>(magnitude.str().size()) * 64);
      digits = based_digits(magnitude, spec.type);
      break;
    default:
      throw Failure("ValueError",
                    fmt::format("Unknown format code '{}' for object of type 'int'", spec.type));
  }
  if (spec.grouping != '\0')
    digits = grouped(digits, spec.grouping, spec.type == '\0' || spec.type == 'd' ? 3 : 4);
  return padded(run, spec, sign_of(number.negative(), spec.sign) + prefix_of(spec), digits, '>');
}

std::string format_float(Interpreter& run, double value, const Specification& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::abs(value);
  std::string digits;
  if (spec.type == '\0' && spec.precision < 0) {
    digits = repr_of_float(magnitude);
  } else if (spec.type == '\0') {
    digits = float_digits(magnitude, 'g', std::max<std::int64_t>(spec.precision, 1), false);
    if (std::isfinite(magnitude) && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  } else if (std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos) {
    digits = float_digits(magnitude, spec.type, spec.precision, spec.alternate);
  } else {
    throw Failure("ValueError",
                  fmt::format("Unknown format code '{}' for object of type 'float'", spec.type));
  }
  if (spec.grouping != '\0') digits = grouped(digits, spec.grouping);
  return padded(run, spec, sign_of(negative, spec.sign), digits, '>');
}

// Formats with the % operator.
class PercentFormatter {
 public:
  PercentFormatter(Interpreter& run, std::string_view text, const Value& values)
      : run_(run), text_(text), values_(values), is_tuple_(values.is(Type::kTuple)) {}

  std::string format() {
    while (!text_.empty()) {
      const std::size_t plain = std::min(text_.find('%'), text_.size());
      write(text_.substr(0, plain));
      text_.remove_prefix(plain);
      if (text_.empty()) break;
      text_.remove_prefix(1);
      directive();
    }
    const bool all_used = is_tuple_ ? next_ == values_.items().size() : next_ > 0 || used_mapping_;
    if (!all_used && !values_.is(Type::kDict) && !values_.is(Type::kList))
      throw Failure("TypeError", "not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  void write(std::string_view text) {
    run_.budget().take_bytes(static_cast<std::int64_t>(text.size()));
    out_ += text;
  }
  Value next_value() {
    if (is_tuple_ ? next_ >= values_.items().size() : next_ > 0)
      throw Failure("TypeError", "not enough arguments for format string");
    return is_tuple_ ? values_.items()[next_++] : (++next_, values_);
  }
  std::int64_t number_or_star() {
    if (!text_.starts_with('*')) return read_number(text_);
    text_.remove_prefix(1);
    return index_of(next_value());
  }

  void directive() {
    Value value;
    bool has_value = false;
    if (text_.starts_with('(')) {
      const std::size_t end = text_.find(')');
      if (end == std::string_view::npos) throw Failure("ValueError", "incomplete format key");
      if (!values_.is(Type::kDict)) throw Failure("TypeError", "format requires a mapping");
      const Value key = run_.text(std::string(text_.substr(1, end - 1)));
      const Value* const found = find(run_.budget(), values_, key);
      if (!found) throw Failure("KeyError", repr_of_text(key.text()));
      value = *found;
      has_value = used_mapping_ = true;
      text_.remove_prefix(end + 1);
    }
    Specification spec;
    spec.align = '>';
    bool zero = false;
    for (; !text_.empty() && std::string_view("-+ #0").find(text_.front()) != std::string_view::npos;
         text_.remove_prefix(1)) {
      const char flag = text_.front();
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      if (flag == '0') zero = true;
    }
    spec.width = number_or_star();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = spec.width < -1'000'000'000 ? 1'000'000'000 : -spec.width;
    }
    if (text_.starts_with('.')) {
      text_.remove_prefix(1);
      spec.precision = std::max<std::int64_t>(number_or_star(), 0);
    }
    if (text_.empty()) throw Failure("ValueError", "incomplete format");
    spec.type = text_.front();
    text_.remove_prefix(1);
    if (spec.type == '%') return write("%");
    if (!has_value) value = next_value();
    if (zero && spec.align != '<' && std::string_view("sra c").find(spec.type) == std::string_view::npos) {
      spec.align = '=';
      spec.fill = "0";
    }
    write(converted(value, spec));
  }

  std::string converted(const Value& value, Specification& spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        const std::string text = spec.type == 's' ? run_.str(value) : repr_of(run_.budget(), value);
        const Value whole = run_.text(text);
        const std::int64_t limit = spec.precision < 0 ? length_of(whole) : spec.precision;
        return padded(run_, spec, "", characters(whole, 0, limit), '>');
      }
      case 'c':
        if (value.is(Type::kString) && length_of(value) == 1)
          return padded(run_, spec, "", value.text(), '>');
        throw Failure("TypeError", "%c requires int or char");
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return converted_integer(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (value.is(Type::kUndefined)) fail_undefined(value);
        if (!value.is_number())
          throw Failure("TypeError", fmt::format("must be real number, not {}", type_name(value)));
        return format_float(run_, value.number(), spec);
      default:
        throw Failure("ValueError", "unsupported format character");
    }
  }

  std::string converted_integer(const Value& value, Specification& spec) {
    if (value.is(Type::kUndefined)) fail_undefined(value);
    const bool is_decimal_type = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (!value.is_number() || (value.is(Type::kFloat) && !is_decimal_type)) {
      throw Failure("TypeError",
                    fmt::format("%{} format: {} is required, not {}", spec.type,
                                is_decimal_type ? "a real number" : "an integer", type_name(value)));
    }
    if (value.is(Type::kFloat) && !std::isfinite(value.float_value()))
      throw Failure("ValueError", "cannot convert float NaN or infinity to integer");
    if (is_decimal_type) spec.type = 'd';
    spec.precision = -1;
    return format_integer(
        run_, value.is(Type::kFloat) ? Value::integer(BigInteger::truncated(value.float_value())) : value,
        spec);
  }

  Interpreter& run_;
  std::string_view text_;
  const Value& values_;
  bool is_tuple_;
  std::size_t next_ = 0;
  bool used_mapping_ = false;
  std::string out_;
};

// Formats with str.format.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& run, Args& args) : run_(run), args_(args) {}

  std::string format(std::string_view text, int depth) {
    if (depth > 2) throw Failure("ValueError", "Max string recursion exceeded");
    std::string out;
    while (!text.empty()) {
      const char c = text.front();
      if ((c == '{' || c == '}') && text.size() > 1 && text[1] == c) {
        out += c;
        text.remove_prefix(2);
      } else if (c == '}') {
        throw Failure("ValueError", "Single '}' encountered in format string");
      } else if (c == '{') {
        field(text, out, depth);
      } else {
        const std::size_t plain = std::min(text.find_first_of("{}"), text.size());
        out += text.substr(0, plain);
        text.remove_prefix(plain);
      }
      run_.budget().take_bytes(static_cast<std::int64_t>(out.size()) / 64 + 1);
    }
    return out;
  }

 private:
  // Reads {name!conversion:specification} at the start of `text`.
  void field(std::string_view& text, std::string& out, int depth) {
    std::size_t end = 1;
    for (int open = 1; end < text.size(); ++end) {
      if (text[end] == '{') ++open;
      if (text[end] == '}' && --open == 0) break;
    }
    if (end >= text.size()) throw Failure("ValueError", "expected '}' before end of string");
    std::string_view inside = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    const std::size_t name_end = std::min(inside.find_first_of("!:"), inside.size());
    Value value = named(inside.substr(0, name_end));
    inside.remove_prefix(name_end);
    if (inside.starts_with('!')) {
      const char kind = inside.size() > 1 ? inside[1] : '\0';
      if (kind == 's' || kind == 'r' || kind == 'a')
        value = run_.text(kind == 's' ? run_.str(value) : repr_of(run_.budget(), value));
      else
        throw Failure("ValueError", "Unknown conversion specifier");
      inside.remove_prefix(2);
    }
    std::string specification;
    if (inside.starts_with(':')) specification = format(inside.substr(1), depth + 1);
    const std::string formatted = format_value(run_, value, specification);
    run_.budget().take_bytes(static_cast<std::int64_t>(formatted.size()));
    out += formatted;
  }

  Value named(std::string_view name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    name.remove_prefix(end);
    while (!name.empty()) {
      const bool is_item = name.front() == '[';
      const std::size_t stop = is_item ? name.find(']') : std::min(name.find_first_of(".[", 1), name.size());
      if (stop == std::string_view::npos) throw Failure("ValueError", "Missing ']' in format string");
      const std::string part(name.substr(1, stop - 1));
      if (part.empty()) throw Failure("ValueError", "Empty attribute in format string");
      name.remove_prefix(std::min(stop + (is_item ? 1 : 0), name.size()));
      if (!is_item)
        value = run_.attribute(value, part);
      else if (std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; }) && part.size() < 18)
        value = run_.item(value, Value::integer(std::stoll(part)));
      else
        value = run_.item(value, run_.text(part));
    }
    return value;
  }

  Value argument(std::string_view name) {
    const bool is_number = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    if (is_number) {
      const std::size_t index = name.empty() ? next_++ : static_cast<std::size_t>(read_number(name));
      if (index >= args_.positional.size())
        throw Failure("IndexError",
                      fmt::format("Replacement index {} out of range for positional args tuple", index));
      return args_.positional[index];
    }
    const auto found =
        std::ranges::find(args_.named, name, [](const auto& item) { return std::string_view(item.first); });
    if (found == args_.named.end()) throw Failure("KeyError", repr_of_text(name));
    return found->second;
  }

  Interpreter& run_;
  Args& args_;
  std::size_t next_ = 0;
};

}  // namespace

std::string format_value(Interpreter& run, const Value& value, std::string_view specification) {
  if (specification.empty()) return run.str(value);
  const Specification spec = parse_specification(specification);
  const bool is_float_type =
      spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.is(Type::kFloat) || (value.is_integral() && is_float_type))
    return format_float(run, value.number(), spec);
  if (value.is_integral() && !(value.is(Type::kBool) && spec.type == '\0'))
    return format_integer(run, value, spec);
  if (!value.is(Type::kString) && !value.is(Type::kBool) && !value.is(Type::kUndefined)) {
    throw Failure("TypeError",
                  fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  if (spec.type != '\0' && spec.type != 's')
    throw Failure("ValueError", fmt::format("Unknown format code '{}' for object of type 'str'", spec.type));
  const Value whole = run.text(run.str(value));
  const std::int64_t limit = spec.precision < 0 ? length_of(whole) : spec.precision;
  return padded(run, spec, "", characters(whole, 0, limit), '<');
}

Value format_percent(Interpreter& run, const Value& text, const Value& value) {
  return run.text(PercentFormatter(run, text.text(), value).format());
}

Value format_braces(Interpreter& run, const Value& text, Args& args) {
  return run.text(BraceFormatter(run, args).format(text.text(), 1));
}

}  // namespace primus::jinja
