// JSON in and out of templates, as Python's json module reads and writes it.
//
// Errors: Error(kInvalid) at a position for invalid JSON; Failure for values that JSON cannot represent.
#pragma once

#include <string>
#include <string_view>

#include "base/text/json_reader.h"
#include "lm/template/value.h"

namespace primus::jinja {

// Reads the next value; objects keep the order of their members, and a later duplicate of a key replaces the
// value of the first.
Value read_json(Budget& budget, JsonReader& json);
// Parses a complete text. `name` is the file's name in errors.
Value parse_json(Budget& budget, std::string_view text, std::string_view name);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool multi_line = false;  // whether each element is on its own line, after `indent`
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string write_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace primus::jinja
