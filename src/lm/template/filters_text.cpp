// Jinja's filters of texts and numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "lm/template/arguments.h"
#include "lm/template/filters.h"
#include "lm/template/json.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

// Applies a method of str to the value's text.
Value as_method(Interpreter& run, const Value& value, const char* method, Args& args) {
  return run.method(run.text(run.str(value)), method, args);
}

Value filter_trim(Interpreter& run, const Value& value, Args& args) {
  return as_method(run, value, "strip", args);
}
Value filter_upper(Interpreter& run, const Value& value, Args& args) {
  return as_method(run, value, "upper", args);
}
Value filter_lower(Interpreter& run, const Value& value, Args& args) {
  return as_method(run, value, "lower", args);
}
Value filter_capitalize(Interpreter& run, const Value& value, Args& args) {
  return as_method(run, value, "capitalize", args);
}

Value filter_title(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "title", args, {});
  std::string result;
  bool begins = true;
  each_character(run.str(value), [&](char32_t c, std::string_view bytes) {
    result += begins ? upper(bytes) : lower(bytes);
    begins = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
  return run.text(std::move(result));
}

Value filter_center(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "center", args, {"width"});
  Args width{{given.get(0, Value::integer(80))}, {}};
  return as_method(run, value, "center", width);
}

Value filter_replace(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "replace", args, {"old", "new", "count"}, 2);
  Args texts{{run.text(run.str(given[0])), run.text(run.str(given[1]))}, {}};
  if (given.has(2) && !given[2].is(Type::kNone)) texts.positional.push_back(given[2]);
  return as_method(run, value, "replace", texts);
}

Value filter_format(Interpreter& run, const Value& value, Args& args) {
  const Value text = run.text(run.str(value));
  if (args.named.empty()) return format_percent(run, text, make_tuple(run.budget(), args.positional));
  if (!args.positional.empty())
    throw Failure("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
  const auto mapping = make_mapping();
  for (auto& [name, named] : args.named) put(run.budget(), *mapping, run.text(name), named);
  return format_percent(run, text, dict_of(mapping));
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}
Value filter_escape(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "escape", args, {});
  return run.text(escaped(run.str(value)));
}
Value filter_string(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "string", args, {});
  return value.is(Type::kString) ? value : run.text(run.str(value));
}

Value filter_striptags(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "striptags", args, {});
  const std::string text = run.str(value);
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const bool is_comment = text.compare(at, 4, "<!--") == 0;
    const std::size_t end = text[at] == '<' ? text.find(is_comment ? "-->" : ">", at) : std::string::npos;
    if (end == std::string::npos) {
      plain += text[at++];
    } else {
      at = end + (is_comment ? 3 : 1);
    }
  }
  std::string joined;
  for (const std::string_view word : split_words(plain, -1, false)) {
    if (!joined.empty()) joined += ' ';
    joined += word;
  }
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  for (const auto& [entity, character] : kEntities) {
    std::string next;
    const auto parts = split_at(joined, entity, -1, false);
    for (std::size_t i = 0; i < parts.size(); ++i) (next += i > 0 ? character : "") += parts[i];
    joined = std::move(next);
  }
  return run.text(std::move(joined));
}

Value filter_indent(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "indent", args, {"width", "first", "blank"});
  std::string indentation;
  if (given.has(0) && given[0].is(Type::kString)) {
    indentation = given[0].text();
  } else {
    const std::int64_t width = std::max<std::int64_t>(given.integer(0, 4), 0);
    run.budget().take_bytes(width);
    indentation.assign(static_cast<std::size_t>(width), ' ');
  }
  const bool blank = given.flag(2, false);
  const std::string all = run.str(value) + "\n";
  std::string result = given.flag(1, false) ? indentation : "";
  bool first = true;
  for (const std::string_view line : split_lines(all, false)) {
    run.budget().take_bytes(static_cast<std::int64_t>(line.size() + indentation.size()) + 1);
    if (!first) {
      result += '\n';
      if (blank || !line.empty()) result += indentation;
    }
    first = false;
    result += line;
  }
  return run.text(std::move(result));
}

Value filter_wordcount(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "wordcount", args, {});
  std::int64_t count = 0;
  bool in_word = false;
  each_character(run.str(value), [&](char32_t c, std::string_view) {
    if (is_word(c) && !in_word) ++count;
    in_word = is_word(c);
  });
  return Value::integer(count);
}

Value filter_truncate(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "truncate", args, {"length", "killwords", "end", "leeway"});
  const Value text = run.text(run.str(value)), end = run.text(given.text(2, "..."));
  const std::int64_t limit = given.integer(0, 255);
  const std::int64_t leeway = given.has(3) && !given[3].is(Type::kNone) ? given.integer(3, 5) : 5;
  if (limit < length_of(end)) throw Failure("AssertionError", "expected length >= the length of the end");
  if (length_of(text) - limit <= leeway) return text;
  std::string_view kept = characters(text, 0, limit - length_of(end));
  if (!given.flag(1, false)) kept = split_at(kept, " ", 1, true).front();
  return run.text(std::string(kept) + end.text());
}

std::string quoted(std::string_view text, bool for_query) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') ||
                       ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' && (c & 0x40) != 0) ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !for_query);
    if (plain)
      result += c;
    else if (c == ' ' && for_query)
      result += '+';
    else
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return result;
}
Value filter_urlencode(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "urlencode", args, {});
  if (value.is(Type::kString) || !is_iterable(value)) return run.text(quoted(run.str(value), false));
  std::string query;
  std::vector<Value> pairs;
  if (value.is(Type::kDict)) {
    for (const auto& [key, item] : value.as<MappingObject>().items)
      pairs.push_back(make_tuple(run.budget(), {key, item}));
  } else {
    pairs = run.elements(value);
  }
  for (const Value& pair : pairs) {
    const std::vector<Value> parts = run.elements(pair);
    if (parts.size() != 2) throw Failure("ValueError", "not enough values to unpack (expected 2)");
    if (!query.empty()) query += '&';
    query += quoted(run.str(parts[0]), true) + "=" + quoted(run.str(parts[1]), true);
  }
  return run.text(std::move(query));
}

Value filter_tojson(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = given.flag(0, false);
  style.sort_keys = given.flag(3, false);
  if (given.has(1) && !given[1].is(Type::kNone)) {
    style.multi_line = true;
    style.item_separator = ",";
    if (given[1].is(Type::kString)) {
      style.indent = given[1].text();
    } else {
      const std::int64_t width = std::max<std::int64_t>(given.integer(1, 0), 0);
      run.budget().take_bytes(width);
      style.indent.assign(static_cast<std::size_t>(width), ' ');
    }
  }
  if (given.has(2) && !given[2].is(Type::kNone)) {
    const std::vector<Value> separators = run.elements(given[2]);
    if (separators.size() != 2 || !separators[0].is(Type::kString) || !separators[1].is(Type::kString))
      throw Failure("TypeError", "separators must be two strings");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return run.text(write_json(run.budget(), value, style));
}

Value filter_abs(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "abs", args, {});
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is(Type::kFloat)) return Value::real(std::abs(value.float_value()));
  if (!value.is_integral())
    throw Failure("TypeError", fmt::format("bad operand type for abs(): '{}'", type_name(value)));
  return value.big().negative() ? negate(value) : Value::integer(value.big());
}

// Returns the float that Python reads from a text; nullopt if the text is not a float.
std::optional<double> parsed_float(std::string_view text) {
  std::string digits(strip(text, true, true));
  std::erase(digits, '_');
  const bool is_hex = digits.find_first_of("xXpP") != std::string::npos;
  if (digits.empty() || is_hex || digits.front() == ' ') return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size() || digits.find('(') != std::string::npos) return std::nullopt;
  return value;
}

Value filter_float(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "float", args, {"default"});
  if (value.is_number()) return Value::real(value.number());
  if (value.is(Type::kString))
    if (const auto parsed = parsed_float(value.text())) return Value::real(*parsed);
  if (value.is(Type::kUndefined)) fail_undefined(value);
  return given.get(0, Value::real(0));
}

Value filter_int(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "int", args, {"default", "base"});
  const Value otherwise = given.get(0, Value::integer(0));
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is_integral()) return Value::integer(value.big());
  std::optional<double> real;
  if (value.is(Type::kFloat)) real = value.float_value();
  if (value.is(Type::kString)) {
    std::string digits(strip(value.text(), true, true));
    std::erase(digits, '_');
    const bool negative = digits.starts_with('-');
    if (negative || digits.starts_with('+')) digits.erase(0, 1);
    const std::int64_t base = given.integer(1, 10);
    const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
    if (!prefix.empty() && lower(digits).starts_with(prefix)) digits.erase(0, 2);
    const auto valid = [base](char c) {
      const int digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                                 : 99;
      return digit < base;
    };
    if (base >= 2 && base <= 36 && !digits.empty() && digits.size() <= BigInteger::kMaxDigits &&
        std::ranges::all_of(digits, valid)) {
      run.budget().take_steps(static_cast<std::int64_t>(digits.size() * digits.size()) / 16 + 1);
      const BigInteger parsed = BigInteger::parse(digits, static_cast<int>(base));
      return Value::integer(negative ? -parsed : parsed);
    }
    real = parsed_float(value.text());
  }
  if (!real || !std::isfinite(*real)) return otherwise;
  return Value::integer(BigInteger::truncated(*real));
}

Value filter_round(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "round", args, {"precision", "method"});
  const std::int64_t precision = std::clamp<std::int64_t>(given.integer(0, 0), -300, 300);
  const std::string method = given.text(1, "common");
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (!value.is_number())
    throw Failure("TypeError", fmt::format("type {} doesn't define __round__ method", type_name(value)));
  if (method != "common" && method != "ceil" && method != "floor")
    throw Failure("FilterArgumentError", "method must be common, ceil or floor");
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = value.number() * scale;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.is_integral() && precision >= 0) return Value::integer(value.big());
  if (!std::isfinite(value.number())) return value;
  double rounded = 0;
  if (precision >= 0) {
    rounded = std::strtod(fmt::format("{:.{}f}", value.number(), precision).c_str(), nullptr);
  } else {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    rounded = std::nearbyint(value.number() / scale) * scale;
  }
  return value.is_integral() ? Value::integer(BigInteger::truncated(rounded)) : Value::real(rounded);
}

Value filter_filesizeformat(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "filesizeformat", args, {"binary"});
  const bool binary = given.flag(0, false);
  Args none;
  const double bytes = filter_float(run, value, none).float_value(), base = binary ? 1024 : 1000;
  if (bytes == 1) return run.text("1 Byte");
  if (bytes < base) return run.text(fmt::format("{} Bytes", static_cast<std::int64_t>(bytes)));
  static constexpr std::string_view kUnits = "kMGTPEZY";
  double unit = base;
  std::size_t index = 0;
  for (unit *= base; bytes >= unit && index + 1 < kUnits.size(); unit *= base) ++index;
  const std::string name =
      binary ? fmt::format("{}iB", index == 0 ? 'K' : kUnits[index]) : fmt::format("{}B", kUnits[index]);
  return run.text(fmt::format("{:.1f} {}", base * bytes / unit, name));
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {
      {"trim", filter_trim},
      {"upper", filter_upper},
      {"lower", filter_lower},
      {"capitalize", filter_capitalize},
      {"title", filter_title},
      {"center", filter_center},
      {"replace", filter_replace},
      {"format", filter_format},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"forceescape", filter_escape},
      {"safe", filter_string},
      {"string", filter_string},
      {"striptags", filter_striptags},
      {"indent", filter_indent},
      {"wordcount", filter_wordcount},
      {"truncate", filter_truncate},
      {"urlencode", filter_urlencode},
      {"tojson", filter_tojson},
      {"abs", filter_abs},
      {"float", filter_float},
      {"int", filter_int},
      {"round", filter_round},
      {"filesizeformat", filter_filesizeformat},
      {"pprint",
       [](Interpreter& run, const Value& value, Args&) { return run.text(repr_of(run.budget(), value)); }},
  };
  return table;
}

}  // namespace primus::jinja
