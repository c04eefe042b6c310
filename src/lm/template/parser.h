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
  bool has_generation = false;  // whether the template has a generation block
};

// Parses a template. A filter or test that `known` does not accept is an error. In a branch of a condition,
// this error occurs only when the expression is evaluated.
Parsed parse_template(std::string_view source, const KnownNames& known);

}  // namespace primus::jinja
