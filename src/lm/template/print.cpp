// Prints values as Python's str and repr.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "lm/template/python_text.h"
#include "lm/template/value.h"

namespace primus::jinja {
namespace {

// Appends reprs to one text, so that a nested value is copied only once.
class Printer {
 public:
  Printer(Budget& budget, std::string& out) : budget_(budget), out_(out) {}

  void print(const Value& value) {
    const Budget::Level level(budget_);
    switch (value.type()) {
      case Type::kString:
        return write(repr_of_text(value.text()));
      case Type::kUndefined:
        return write("Undefined");
      case Type::kList:
        write("[");
        print_items(value.items());
        return write("]");
      case Type::kTuple:
        write("(");
        print_items(value.items());
        return write(value.items().size() == 1 ? ",)" : ")");
      case Type::kDict:
        return print_dict(value);
      case Type::kView:
        write(type_name(value));
        write("([");
        print_items(elements(budget_, value));
        return write("])");
      case Type::kNamespace:
        write("<");
        write(type_name(value));
        write(" {");
        for (const auto& [name, item] : value.as<NamespaceObject>().items) {
          if (out_.back() != '{') write(", ");
          write(repr_of_text(name) + ": ");
          print(item);
        }
        return write("}>");
      default:
        return write(print_plain(value));
    }
  }

 private:
  void write(std::string_view text) {
    budget_.take_bytes(static_cast<std::int64_t>(text.size()) + 1);
    out_ += text;
  }
  void print_items(const std::vector<Value>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) write(", ");
      print(items[i]);
    }
  }
  void print_dict(const Value& value) {
    write("{");
    bool first = true;
    for (const auto& [key, item] : value.as<MappingObject>().items) {
      if (!first) write(", ");
      first = false;
      print(key);
      write(": ");
      print(item);
    }
    write("}");
  }
  static std::string print_plain(const Value& value) {
    switch (value.type()) {
      case Type::kNone:
        return "None";
      case Type::kBool:
        return value.int_value() != 0 ? "True" : "False";
      case Type::kInt:
        return std::to_string(value.int_value());
      case Type::kBigInt:
        return value.as<BigObject>().value.str();
      case Type::kFloat:
        return repr_of_float(value.float_value());
      case Type::kRange: {
        const auto& range = value.as<RangeObject>();
        if (range.step == 1) return fmt::format("range({}, {})", range.start, range.stop);
        return fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
      }
      default:
        return fmt::format("<{} object>", type_name(value));
    }
  }

  Budget& budget_;
  std::string& out_;
};

}  // namespace

std::string str_of(Budget& budget, const Value& value) {
  if (value.is(Type::kString)) {
    budget.take_bytes(static_cast<std::int64_t>(value.text().size()));
    return value.text();
  }
  if (value.is(Type::kUndefined)) return "";
  return repr_of(budget, value);
}

std::string repr_of(Budget& budget, const Value& value) {
  std::string text;
  Printer(budget, text).print(value);
  return text;
}

std::string repr_of_text(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string result(1, quote);
  each_character(text, [&](char32_t c, std::string_view bytes) {
    if (c == static_cast<char32_t>(quote) || c == '\\')
      (result += '\\') += static_cast<char>(c);
    else if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else if (is_printable(c))
      result += bytes;
    else if (c < 0x100)
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else if (c < 0x10000)
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      result += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
  });
  return result + quote;
}

std::string repr_of_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  const bool minus = text.front() == '-';
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string result = minus ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    result += digits[0];
    if (digits.size() > 1) (result += '.') += digits.substr(1);
    return result + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  result += digits.substr(0, whole) + ".";
  return result + (digits.size() > whole ? digits.substr(whole) : "0");
}

}  // namespace primus::jinja
