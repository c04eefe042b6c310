#include "lm/reward/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"

namespace primus {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 128;
constexpr std::int64_t kMaxSteps = 1'000'000;

// The form of a keyword's value.
enum class Form : std::uint8_t {
  kAny,
  kSchema,
  kSchemas,       // a list
  kNamedSchemas,  // an object
  kPatternSchemas,
  kType,
  kList,
  kNames,
  kNamedNames,
  kCount,
  kNumber,
  kPositive,
  kBool,
  kPattern,
  kReference,
};

constexpr std::array<std::pair<std::string_view, Form>, 48> kKeywords = {{
    {"type", Form::kType},
    {"enum", Form::kList},
    {"const", Form::kAny},
    {"properties", Form::kNamedSchemas},
    {"required", Form::kNames},
    {"additionalProperties", Form::kSchema},
    {"patternProperties", Form::kPatternSchemas},
    {"propertyNames", Form::kSchema},
    {"minProperties", Form::kCount},
    {"maxProperties", Form::kCount},
    {"dependentRequired", Form::kNamedNames},
    {"items", Form::kSchema},
    {"prefixItems", Form::kSchemas},
    {"contains", Form::kSchema},
    {"minItems", Form::kCount},
    {"maxItems", Form::kCount},
    {"uniqueItems", Form::kBool},
    {"minLength", Form::kCount},
    {"maxLength", Form::kCount},
    {"pattern", Form::kPattern},
    {"minimum", Form::kNumber},
    {"maximum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"exclusiveMaximum", Form::kNumber},
    {"multipleOf", Form::kPositive},
    {"allOf", Form::kSchemas},
    {"anyOf", Form::kSchemas},
    {"oneOf", Form::kSchemas},
    {"not", Form::kSchema},
    {"if", Form::kSchema},
    {"then", Form::kSchema},
    {"else", Form::kSchema},
    {"$defs", Form::kNamedSchemas},
    {"definitions", Form::kNamedSchemas},
    {"$ref", Form::kReference},
    // Keywords that describe a value without restricting it.
    {"$schema", Form::kAny},
    {"$id", Form::kAny},
    {"$comment", Form::kAny},
    {"title", Form::kAny},
    {"description", Form::kAny},
    {"default", Form::kAny},
    {"examples", Form::kAny},
    {"deprecated", Form::kAny},
    {"readOnly", Form::kAny},
    {"writeOnly", Form::kAny},
    {"format", Form::kAny},
    {"contentEncoding", Form::kAny},
    {"contentMediaType", Form::kAny},
}};

bool is_names(const json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const json& name) { return name.is_string(); });
}

bool is_type_name(const json& value) {
  constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "object", "array",
                                                      "number", "string",  "integer"};
  return value.is_string() && std::ranges::find(kTypes, value.get_ref<const std::string&>()) != kTypes.end();
}

Error wrong_value(const std::string& key) {
  return invalid(
      fmt::format("JSON schema: the keyword '{}' has a value of the wrong type", printable(excerpt(key))));
}

bool has_type(const json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

JsonSchema::JsonSchema(json schema) : schema_(std::move(schema)) {
  check(schema_, 0);
  for (const auto& [reference, part] : targets_) {
    if (part == nullptr) {
      throw invalid(
          fmt::format("JSON schema: '$ref: {}' names no part of the schema", printable(excerpt(reference))),
          "write a reference such as #/$defs/NAME");
    }
  }
}

void JsonSchema::add_pattern(const std::string& pattern) {
  if (!patterns_.contains(pattern)) patterns_.emplace(pattern, SearchPattern(pattern));
}

const json* JsonSchema::target(const std::string& reference) const {
  if (!reference.starts_with('#')) return nullptr;
  try {
    const json::json_pointer pointer(reference.substr(1));
    const json& part = schema_.at(pointer);
    return part.is_object() || part.is_boolean() ? &part : nullptr;
  } catch (const json::exception&) {
    return nullptr;
  }
}

void JsonSchema::check(const json& schema, int depth) {
  if (depth > kMaxDepth) throw invalid("JSON schema: the schema is nested too deeply");
  if (schema.is_boolean()) return;
  if (!schema.is_object()) throw invalid("JSON schema: a schema must be an object, true or false");
  for (const auto& [key, value] : schema.items()) check_keyword(key, value, depth);
}

void JsonSchema::check_keyword(const std::string& key, const json& value, int depth) {
  const auto keyword = std::ranges::find(kKeywords, key, [](const auto& entry) { return entry.first; });
  if (keyword == kKeywords.end()) {
    throw unsupported(fmt::format("JSON schema: the keyword '{}' is not supported", printable(excerpt(key))),
                      "docs/rewards.md lists the keywords");
  }
  bool fits = true;
  switch (keyword->second) {
    case Form::kAny:
      break;
    case Form::kSchema:
      check(value, depth + 1);
      break;
    case Form::kSchemas:
      fits = value.is_array() && !value.empty();
      if (!fits) break;
      for (const json& part : value) check(part, depth + 1);
      break;
    case Form::kNamedSchemas:
    case Form::kPatternSchemas:
      fits = value.is_object();
      if (!fits) break;
      for (const auto& [name, part] : value.items()) {
        if (keyword->second == Form::kPatternSchemas) add_pattern(name);
        check(part, depth + 1);
      }
      break;
    case Form::kType:
      fits = is_type_name(value) || (value.is_array() && std::ranges::all_of(value, is_type_name));
      break;
    case Form::kList:
      fits = value.is_array();
      break;
    case Form::kNames:
      fits = is_names(value);
      break;
    case Form::kNamedNames:
      fits = value.is_object() && std::ranges::all_of(value, is_names);
      break;
    case Form::kCount:
      fits = value.is_number_unsigned();
      break;
    case Form::kNumber:
      fits = value.is_number();
      break;
    case Form::kPositive:
      fits = value.is_number() && value.get<double>() > 0;
      break;
    case Form::kBool:
      fits = value.is_boolean();
      break;
    case Form::kPattern:
      fits = value.is_string();
      if (fits) add_pattern(value.get<std::string>());
      break;
    case Form::kReference:
      fits = value.is_string();
      if (fits) targets_.emplace(value.get<std::string>(), target(value.get<std::string>()));
      break;
  }
  if (!fits) throw wrong_value(key);
}

// Runs one validation. Throws Limit if the validation exceeds a limit.
class SchemaRun {
 public:
  struct Limit {};
  explicit SchemaRun(const JsonSchema& schema) : schema_(schema) {}

  bool valid(const json& schema, const json& value, int depth) {
    if (depth > kMaxDepth) throw Limit();
    step();
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [key, argument] : schema.items()) {
      step();
      if (!holds(schema, key, argument, value, depth + 1)) return false;
    }
    return true;
  }

 private:
  void step(std::int64_t count = 1) {
    steps_ += count;
    if (steps_ > kMaxSteps) throw Limit();
  }

  bool found(const std::string& pattern, const std::string& text) {
    constexpr std::int64_t kStepsOfSearch = 1000;
    step(kStepsOfSearch);
    const SearchResult result = schema_.patterns_.at(pattern).find(text);
    if (result == SearchResult::kLimit) throw Limit();
    return result == SearchResult::kFound;
  }

  bool holds(const json& schema, const std::string& key, const json& argument, const json& value, int depth) {
    if (key == "type") {
      if (argument.is_string()) return has_type(value, argument.get_ref<const std::string&>());
      return std::ranges::any_of(argument,
                                 [&](const json& type) { return has_type(value, type.get<std::string>()); });
    }
    if (key == "enum")
      return std::ranges::any_of(argument, [&](const json& item) { return equal(item, value); });
    if (key == "const") return equal(argument, value);
    if (key == "$ref") return valid(*schema_.targets_.at(argument.get<std::string>()), value, depth);
    if (key == "allOf") return count_valid(argument, value, depth) == argument.size();
    if (key == "anyOf") return count_valid(argument, value, depth) > 0;
    if (key == "oneOf") return count_valid(argument, value, depth) == 1;
    if (key == "not") return !valid(argument, value, depth);
    if (key == "if") {
      const char* const branch = valid(argument, value, depth) ? "then" : "else";
      const auto found_branch = schema.find(branch);
      return found_branch == schema.end() || valid(*found_branch, value, depth);
    }
    if (value.is_object()) return object_holds(schema, key, argument, value, depth);
    if (value.is_array()) return array_holds(schema, key, argument, value, depth);
    if (value.is_string()) return string_holds(key, argument, value.get_ref<const std::string&>());
    if (value.is_number())
      return number_holds(key, argument.is_number() ? argument.get<double>() : 0, value.get<double>());
    return true;
  }

  bool equal(const json& a, const json& b) {
    step(static_cast<std::int64_t>(std::max(a.size(), b.size())) + 1);
    return a == b;
  }

  std::size_t count_valid(const json& schemas, const json& value, int depth) {
    return static_cast<std::size_t>(
        std::ranges::count_if(schemas, [&](const json& schema) { return valid(schema, value, depth); }));
  }

  // Returns whether a keyword other than additionalProperties describes the property.
  bool is_named(const json& schema, const std::string& name) {
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->contains(name)) return true;
    const auto patterns = schema.find("patternProperties");
    if (patterns == schema.end()) return false;
    return std::ranges::any_of(patterns->items(), [&](const auto& item) { return found(item.key(), name); });
  }

  bool object_holds(const json& schema, const std::string& key, const json& argument, const json& value,
                    int depth) {
    if (key == "required") {
      return std::ranges::all_of(argument,
                                 [&](const json& name) { return value.contains(name.get<std::string>()); });
    }
    if (key == "minProperties") return value.size() >= argument.get<std::size_t>();
    if (key == "maxProperties") return value.size() <= argument.get<std::size_t>();
    if (key == "properties") {
      return std::ranges::all_of(argument.items(), [&](const auto& item) {
        const auto member = value.find(item.key());
        return member == value.end() || valid(item.value(), *member, depth);
      });
    }
    if (key == "dependentRequired") {
      return std::ranges::all_of(argument.items(), [&](const auto& item) {
        return !value.contains(item.key()) || std::ranges::all_of(item.value(), [&](const json& name) {
          return value.contains(name.template get<std::string>());
        });
      });
    }
    for (const auto& [name, member] : value.items()) {
      if (key == "propertyNames" && !valid(argument, json(name), depth)) return false;
      if (key == "additionalProperties" && !is_named(schema, name) && !valid(argument, member, depth))
        return false;
      if (key != "patternProperties") continue;
      for (const auto& [pattern, part] : argument.items()) {
        if (found(pattern, name) && !valid(part, member, depth)) return false;
      }
    }
    return true;
  }

  bool array_holds(const json& schema, const std::string& key, const json& argument, const json& value,
                   int depth) {
    if (key == "minItems") return value.size() >= argument.get<std::size_t>();
    if (key == "maxItems") return value.size() <= argument.get<std::size_t>();
    if (key == "contains") {
      return std::ranges::any_of(value, [&](const json& item) { return valid(argument, item, depth); });
    }
    if (key == "uniqueItems") {
      if (!argument.get<bool>()) return true;
      for (std::size_t i = 0; i < value.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (equal(value[i], value[j])) return false;
        }
      }
      return true;
    }
    if (key == "prefixItems") {
      for (std::size_t i = 0; i < std::min(argument.size(), value.size()); ++i) {
        if (!valid(argument[i], value[i], depth)) return false;
      }
    }
    if (key == "items") {
      const auto prefix = schema.find("prefixItems");
      for (std::size_t i = prefix == schema.end() ? 0 : prefix->size(); i < value.size(); ++i) {
        if (!valid(argument, value[i], depth)) return false;
      }
    }
    return true;
  }

  bool string_holds(const std::string& key, const json& argument, const std::string& text) {
    if (key == "minLength") return characters(text) >= argument.get<std::size_t>();
    if (key == "maxLength") return characters(text) <= argument.get<std::size_t>();
    return key != "pattern" || found(argument.get<std::string>(), text);
  }

  static bool number_holds(const std::string& key, double limit, double number) {
    if (key == "minimum") return number >= limit;
    if (key == "maximum") return number <= limit;
    if (key == "exclusiveMinimum") return number > limit;
    if (key == "exclusiveMaximum") return number < limit;
    if (key != "multipleOf") return true;
    // 0.3 is a multiple of 0.1, although their quotient is not exactly 3.
    const double quotient = number / limit;
    return std::abs(quotient - std::round(quotient)) <= 1e-9 * std::max(1.0, std::abs(quotient));
  }

  const JsonSchema& schema_;
  std::int64_t steps_ = 0;
};

SchemaResult JsonSchema::validate(const json& value) const {
  try {
    return SchemaRun(*this).valid(schema_, value, 0) ? SchemaResult::kValid : SchemaResult::kInvalid;
  } catch (const SchemaRun::Limit&) {
    return SchemaResult::kLimit;
  }
}

}  // namespace primus
