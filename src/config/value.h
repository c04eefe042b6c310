// A settings document read from YAML, TOML or the command line: a tree of values, each with its position in
// the source. Readers produce it, inheritance merges it, and the schema binds it to typed fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace primus::config {

// A text that contains settings: a file, or a command-line argument.
struct Source {
  std::string name;  // the name shown in errors: the file's path, or "command line"
  std::string text;
  bool is_file = true;           // false: messages omit line and column
  bool columns_in_bytes = true;  // whether Origin::column counts bytes or characters
};

// A position in a source. line and column count from 1; line 0 means the entire source. If there is no
// source, the value is a built-in default.
struct Origin {
  std::shared_ptr<const Source> source;
  int line = 0;
  int column = 0;
  std::string variable = {};  // the environment variable that supplied the value, if any

  // Returns "exp.yaml:12:5", "command line", "default", "exp.yaml:12:5 (environment NAME)"; columns count
  // characters.
  std::string describe() const;
  // Returns "exp.yaml:12:5" or "command line", without the variable.
  std::string location() const;
  // Returns the line with a caret under the position, `length` characters wide; empty if there is no line to
  // show.
  std::string snippet(std::size_t length = 1) const;
};

// Returns an Error of kind kInvalid at `origin`.
Error error_at(const Origin& origin, std::string what, std::string hint = {}, std::size_t length = 1);

struct Member;

struct Value {
  enum class Kind : std::uint8_t { kNull, kBool, kInt, kFloat, kString, kList, kMap };

  Kind kind = Kind::kNull;
  bool boolean = false;
  bool quoted = false;  // a quoted string, which is never parsed as a number
  std::int64_t integer = 0;
  double real = 0;              // the number, for kFloat and kInt
  std::string text;             // kString: the string; other scalars: as written in the source
  std::vector<Value> items;     // kList
  std::vector<Member> members;  // kMap, in source order; keys are unique
  Origin origin;

  bool is_null() const { return kind == Kind::kNull; }
  bool is_map() const { return kind == Kind::kMap; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_scalar() const { return !is_map() && !is_list(); }

  const Value* find(std::string_view key) const;
  const Member* find_member(std::string_view key) const;
  // Adds a member or replaces its value.
  void set(std::string key, Origin key_origin, Value value);

  // Returns "a number", "a list" ...: for messages.
  std::string_view kind_name() const;
  // Returns the source text on one line, shortened to about 40 characters: for messages.
  std::string show() const;
  // Returns the width of the caret under the value.
  std::size_t width() const;
};

struct Member {
  std::string key;
  Origin origin;
  Value value;
};

// Parses a scalar without quotes by the rules of YAML 1.2's core schema plus digit separators and Python's
// None: null, None, true, 12, 1_000, 1e-5; everything else is a string.
Value plain_scalar(std::string_view text, Origin origin);

// Parses the text after `=` on the command line, or an environment variable: [a, b] and {k: v} are read as
// YAML, (a, b) is the list [a, b], text in quotes is a string, the rest is a plain scalar. Text that only
// begins like a list or map ("[0,", "[draft") is a string. Throws Error.
Value parse_inline(std::string_view text, const Origin& origin);

// Merges `over` into `base`: maps merge member by member, and a member of both maps gets its origin from
// `over`. All other values are replaced.
void merge(Value& base, const Value& over);

}  // namespace primus::config
