// A settings document as read from YAML, TOML or the command line: a tree of values, each of which knows
// where it was written. Readers produce it, inheritance merges it, and the schema binds it to typed fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace primus::config {

// One text that settings come from: a file, or a command-line argument.
struct Source {
  std::string name;  // as shown in errors: the file's path, or "command line"
  std::string text;
  bool is_file = true;
};

// A place in a source. line and column count from 1, columns in characters; line 0: the source as a whole.
// A null source: the built-in default.
struct Origin {
  std::shared_ptr<const Source> source;
  int line = 0;
  int column = 0;
  std::string variable;  // name of the environment variable that gave the value, if one did

  // "exp.yaml:12:5", "command line", "default", "exp.yaml:12:5 (environment NAME)".
  std::string describe() const;
  // The line with a caret below the place, `length` characters wide; empty when there is no line to show.
  std::string snippet(size_t length = 1) const;
};

// An Error of kind kInvalid at `origin`.
Error error_at(const Origin& origin, std::string what, std::string hint = {}, size_t length = 1);

struct Member;

struct Value {
  enum class Kind { kNull, kBool, kInt, kFloat, kString, kList, kMap };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;              // also set for kInt
  std::string text;             // kString: the string; other scalars: as written
  bool quoted = false;          // a string in quotes: never taken for a number
  std::vector<Value> items;     // kList
  std::vector<Member> members;  // kMap, in the order written; keys are unique
  Origin origin;

  const Value* find(std::string_view key) const;
  const Member* find_member(std::string_view key) const;
  // Adds or replaces.
  void set(std::string key, const Origin& key_origin, Value value);

  // "a number", "a list", ...: for messages.
  std::string_view kind_name() const;
  // As the user would write it on one line, shortened to ~40 characters: for messages.
  std::string show() const;
};

struct Member {
  std::string key;
  Origin origin;
  Value value;
};

// A plain (unquoted) scalar by the rules of YAML 1.2's core schema: null, true, 12, 1_000, 1e-5, else a
// string.
Value plain_scalar(std::string_view text, Origin origin);

// What is written after `=` on the command line, or in an environment variable: [a, b] and {k: v} are read as
// YAML, "quoted" text is a string, the rest is a plain scalar. Throws Error.
Value parse_inline(std::string_view text, const Origin& origin);

// `over` into `base`: maps merge member by member, everything else is replaced.
void merge(Value& base, const Value& over);

}  // namespace primus::config
