// TOML by toml++, turned into the same tree as YAML.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "config/readers.h"

// toml++ 3.3 asserts what its caller should have checked, does not check it for some malformed files
// ("[a[b"), and tells the compiler to rely on it where NDEBUG is defined. Here its assertions stay on, and
// throw.
namespace primus::config {
namespace {
struct AssertionFailed {};
[[noreturn]] void assertion_failed() { throw AssertionFailed(); }
}  // namespace
}  // namespace primus::config
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? void() : ::primus::config::assertion_failed())
#define TOML_MAX_NESTED_VALUES 64
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace primus::config {
namespace {

// Refuses, before toml++ sees it, what toml++ 3.3 does not survive: it frees a key like a.a.a.a... by
// recursion, and its test for white space is undefined for most characters beyond ASCII, which TOML allows
// only in strings and comments.
class Prescan {
 public:
  explicit Prescan(const std::shared_ptr<const Source>& source) : source_(source), text_(source->text) {}

  void run() {
    int dots = 0;  // since the last character that ends a key
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        continue;
      }
      refuse_beyond_ascii();
      if (c == '=' || c == ',' || c == '{' || c == '[' || c == '\n') dots = 0;
      if (c == '.' && ++dots >= kMaxDepth) {
        throw error_at(here(), fmt::format("nested more than {} levels deep", kMaxDepth));
      }
      advance();
    }
  }

 private:
  void advance() {
    if (text_[at_] == '\n') {
      ++line_;
      line_begin_ = at_ + 1;
    }
    ++at_;
  }

  // In characters, as toml++ counts.
  Origin here() const {
    int column = 1;
    for (char c : text_.substr(line_begin_, at_ - line_begin_))
      column += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return {source_, line_, column, {}};
  }

  void refuse_beyond_ascii() const {
    if (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x80) {
      throw error_at(here(),
                     "this is not valid TOML: characters beyond ASCII stand only in strings and comments",
                     "put it in quotes");
    }
  }

  void skip_string(char quote) {
    const std::string_view triple = quote == '"' ? "\"\"\"" : "'''";
    const bool multiline = text_.substr(at_, 3) == triple;
    at_ += multiline ? 3 : 1;
    while (at_ < text_.size()) {
      if (multiline ? text_.substr(at_, 3) == triple : text_[at_] == quote) {
        at_ += multiline ? 3 : 1;
        // Up to two more quotes belong to the text before the closing three.
        for (int i = 0; multiline && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
        return;
      }
      if (!multiline && text_[at_] == '\n') return;
      const bool escape = quote == '"' && text_[at_] == '\\';
      advance();
      if (escape && at_ < text_.size()) skip_escape(multiline);
    }
  }

  // A backslash at the end of a line swallows the white space up to the next text.
  void skip_escape(bool multiline) {
    refuse_beyond_ascii();
    const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
    if (!is_blank(text_[at_])) {
      if (multiline || text_[at_] != '\n') advance();
      return;
    }
    if (!multiline) return;
    while (at_ < text_.size() && is_blank(text_[at_])) advance();
    refuse_beyond_ascii();
  }

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  size_t at_ = 0, line_begin_ = 0;
  int line_ = 1;
};

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

bool passes_assertions(std::string_view text) {
  try {
    (void)toml::parse(text);
  } catch (const AssertionFailed&) {
    return false;
  } catch (const toml::parse_error&) {
  }
  return true;
}

// The first line at which toml++ fails an assertion: it reads from the beginning, so all longer texts fail
// too.
int line_of_assertion(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1))
    ends.push_back(at + 1);
  const auto first = std::partition_point(ends.begin(), ends.end(),
                                          [&](size_t end) { return passes_assertions(text.substr(0, end)); });
  return static_cast<int>(first - ends.begin()) + 1;
}

}  // namespace

Value read_toml(const std::shared_ptr<const Source>& source) {
  Prescan(source).run();
  Converter converter(source);
  try {
    const toml::table root = toml::parse(source->text);
    Value value = converter.convert(root, 0);
    if (value.members.empty()) throw error_at({source}, "the file holds no settings");
    return value;
  } catch (const toml::parse_error& problem) {
    throw error_at(converter.origin_of(problem.source()),
                   "this is not valid TOML: " + std::string(problem.description()));
  } catch (const AssertionFailed&) {
    throw error_at({source, line_of_assertion(source->text), 1, {}}, "this line is not valid TOML");
  }
}

}  // namespace primus::config
