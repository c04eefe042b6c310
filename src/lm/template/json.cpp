#include "lm/template/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

Value number_of(std::string_view text) {
  if (text == "NaN") return Value::real(std::nan(""));
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  const bool is_whole = std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_whole || digits.size() > BigInteger::kMaxDigits)
    return Value::real(std::strtod(std::string(text).c_str(), nullptr));
  const BigInteger value = BigInteger::parse(digits, 10);
  return Value::integer(negative ? -value : value);
}

// Writes all values to one text, so that a nested value is copied only once.
class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  std::string write(const Value& value) {
    append(value);
    return std::move(out_);
  }

 private:
  void put(std::string_view text) {
    budget_.take_bytes(static_cast<std::int64_t>(text.size()) + 1);
    out_ += text;
  }
  void new_line() {
    if (!style_.multi_line) return;
    put("\n");
    for (int i = 0; i < level_; ++i) put(style_.indent);
  }

  void append(const Value& value) {
    const Budget::Level level(budget_);
    switch (value.type()) {
      case Type::kNone:
        return put("null");
      case Type::kBool:
        return put(value.int_value() != 0 ? "true" : "false");
      case Type::kInt:
      case Type::kBigInt:
        return put(value.big().str());
      case Type::kFloat:
        return put(float_text(value.float_value()));
      case Type::kString:
        return string(value.text());
      case Type::kList:
      case Type::kTuple:
        return list(value.items());
      case Type::kDict:
        return dict(value.as<MappingObject>());
      default:
        throw Failure("TypeError",
                      fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

  static std::string float_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_of_float(value);
  }

  void list(const std::vector<Value>& items) {
    if (items.empty()) return put("[]");
    put("[");
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line();
      append(items[i]);
    }
    --level_;
    new_line();
    put("]");
  }

  static std::string key_text(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        return key.text();
      case Type::kNone:
        return "null";
      case Type::kBool:
        return key.int_value() != 0 ? "true" : "false";
      case Type::kInt:
      case Type::kBigInt:
        return key.big().str();
      case Type::kFloat:
        return float_text(key.float_value());
      default:
        throw Failure("TypeError",
                      fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void dict(const MappingObject& mapping) {
    if (mapping.items.empty()) return put("{}");
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : mapping.items) members.push_back(&member);
    budget_.take_steps(static_cast<std::int64_t>(members.size()));
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          members, [&](const auto* a, const auto* b) { return less(budget_, a->first, b->first, "<"); });
    }
    put("{");
    ++level_;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line();
      string(key_text(members[i]->first));
      put(style_.key_separator);
      append(members[i]->second);
    }
    --level_;
    new_line();
    put("}");
  }

  void string(std::string_view text) {
    put("\"");
    each_character(text, [&](char32_t c, std::string_view bytes) {
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const std::size_t found = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (found != std::string_view::npos)
        (out_ += '\\') += kLetters[found];
      else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000 && c != 0x7f))
        out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      else if (style_.ensure_ascii && c >= 0x10000)
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((static_cast<unsigned>(c) - 0x10000) >> 10),
                            0xDC00 + ((static_cast<unsigned>(c) - 0x10000) & 0x3FF));
      else
        out_ += bytes;
    });
    budget_.take_bytes(static_cast<std::int64_t>(text.size()));
    put("\"");
  }

  Budget& budget_;
  const JsonStyle& style_;
  int level_ = 0;
  std::string out_;
};

}  // namespace

Value read_json(Budget& budget, JsonReader& json) {
  switch (json.peek()) {
    case JsonReader::Kind::kNull:
      json.read_null();
      return Value::none();
    case JsonReader::Kind::kBool:
      return Value::boolean(json.read_bool());
    case JsonReader::Kind::kString:
      return make_text(budget, json.read_string());
    case JsonReader::Kind::kNumber:
      return number_of(json.skip());
    case JsonReader::Kind::kArray: {
      std::vector<Value> items;
      json.array([&] { items.push_back(read_json(budget, json)); });
      return make_list(budget, std::move(items));
    }
    case JsonReader::Kind::kObject:
      break;
  }
  const auto mapping = make_mapping();
  json.object([&](std::string_view key) {
    const Value name = make_text(budget, std::string(key));
    put(budget, *mapping, name, read_json(budget, json));
  });
  return dict_of(mapping);
}

Value parse_json(Budget& budget, std::string_view text, std::string_view name) {
  JsonReader json(text, name, {.python = true});
  Value value = read_json(budget, json);
  json.finish();
  return value;
}

std::string write_json(Budget& budget, const Value& value, const JsonStyle& style) {
  return JsonWriter(budget, style).write(value);
}

}  // namespace primus::jinja
