// Parses templates of the Jinja dialect that transformers renders.
//
// Errors: Failure "TemplateSyntaxError" or "TemplateAssertionError" with Jinja's message; "RecursionError" if
// the template is nested too deeply. Thread-safe.
#pragma once

#include <functional>
#include <string_view>

#include "lm/template/syntax.h"

namespace primus::jinja {

struct KnownNames {
  std::function<bool(std::string_view)> is_filter, is_test;
};

struct Parsed {
  Body body;
  bool has_generation = false;  // contains a generation block
};

// Filters and tests that `known` does not accept are errors, unless they are used in a condition's branch:
// there the error occurs when the expression is evaluated.
Parsed parse_template(std::string_view source, const KnownNames& known);

}  // namespace primus::jinja
