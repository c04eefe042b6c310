// TOML by toml++, turned into the same tree as YAML.
#define TOML_MAX_NESTED_VALUES 64
#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <utility>

#include "config/readers.h"

namespace primus::config {
namespace {

// toml++ frees a key like a.a.a.a... by recursion, so chains of dots are bounded before it sees them. Dots
// are counted from one separator to the next, outside strings and comments.
void check_dotted_keys(const std::shared_ptr<const Source>& source) {
  const std::string_view text = source->text;
  int dots = 0, line = 1;
  size_t line_begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::string_view triple = c == '"' ? "\"\"\"" : "'''";
      const bool multiline = text.substr(i, 3) == triple;
      i += multiline ? 3 : 1;
      while (i < text.size() &&
             !(multiline ? text.substr(i, 3) == triple : text[i] == c || text[i] == '\n')) {
        if (text[i] == '\\' && c == '"') ++i;
        if (i < text.size() && text[i] == '\n') {
          ++line;
          line_begin = i + 1;
        }
        ++i;
      }
      if (multiline)
        i += 2;
      else if (i < text.size() && text[i] == '\n')
        --i;
      continue;
    }
    if (c == '#') i = std::min(text.find('\n', i), text.size()) - 1;
    if (c == '=' || c == ',' || c == '{' || c == '[' || c == '\n') dots = 0;
    if (c == '\n') {
      ++line;
      line_begin = i + 1;
    }
    if (c == '.' && ++dots >= kMaxDepth) {
      throw error_at({source, line, static_cast<int>(i - line_begin) + 1, {}},
                     fmt::format("nested more than {} levels deep", kMaxDepth));
    }
  }
}

class Converter {
 public:
  explicit Converter(std::shared_ptr<const Source> source) : source_(std::move(source)) {}

  Origin origin_of(const toml::source_region& region) const {
    return {source_, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column), {}};
  }

  Value convert(const toml::node& node, int depth) {
    Value value;
    value.origin = origin_of(node.source());
    if (depth > kMaxDepth) {
      throw error_at(value.origin, fmt::format("nested more than {} levels deep", kMaxDepth));
    }
    if (++count_ > kMaxValues) throw error_at(value.origin, "too many values for a settings file");
    switch (node.type()) {
      case toml::node_type::table:
        fill_map(*node.as_table(), value, depth);
        break;
      case toml::node_type::array:
        value.kind = Value::Kind::kList;
        for (const toml::node& item : *node.as_array()) value.items.push_back(convert(item, depth + 1));
        break;
      case toml::node_type::string:
        value.kind = Value::Kind::kString;
        value.text = node.as_string()->get();
        value.quoted = true;
        // TOML has no null, and an experiment needs one to unset what a preset set.
        if (value.text == "null") value.kind = Value::Kind::kNull;
        break;
      case toml::node_type::integer:
        value.kind = Value::Kind::kInt;
        value.integer = node.as_integer()->get();
        value.real = static_cast<double>(value.integer);
        value.text = std::to_string(value.integer);
        break;
      case toml::node_type::floating_point:
        value.kind = Value::Kind::kFloat;
        value.real = node.as_floating_point()->get();
        value.text = fmt::format("{}", value.real);
        break;
      case toml::node_type::boolean:
        value.kind = Value::Kind::kBool;
        value.boolean = node.as_boolean()->get();
        value.text = value.boolean ? "true" : "false";
        break;
      default:
        throw error_at(value.origin, "dates and times have no place in settings", "put it in quotes");
    }
    return value;
  }

 private:
  void fill_map(const toml::table& table, Value& value, int depth) {
    value.kind = Value::Kind::kMap;
    if (table.size() > kMaxMembers) throw error_at(value.origin, "too many keys in one map");
    for (const auto& [key, node] : table) {
      value.members.push_back({std::string(key.str()), origin_of(key.source()), convert(node, depth + 1)});
    }
    // toml++ sorts by name; the order written is what the user knows.
    std::stable_sort(value.members.begin(), value.members.end(), [](const Member& a, const Member& b) {
      return std::pair(a.origin.line, a.origin.column) < std::pair(b.origin.line, b.origin.column);
    });
  }

  std::shared_ptr<const Source> source_;
  size_t count_ = 0;
};

}  // namespace

Value read_toml(const std::shared_ptr<const Source>& source) {
  check_dotted_keys(source);
  Converter converter(source);
  try {
    const toml::table root = toml::parse(source->text);
    Value value = converter.convert(root, 0);
    if (value.members.empty()) throw error_at({source}, "the file holds no settings");
    return value;
  } catch (const toml::parse_error& problem) {
    throw error_at(converter.origin_of(problem.source()),
                   "this is not valid TOML: " + std::string(problem.description()));
  }
}

}  // namespace primus::config
