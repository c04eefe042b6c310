// Chat templates: Jinja programs as transformers' apply_chat_template renders them, in an immutable sandbox
// whose steps, memory and nesting are limited, so that a template from an unknown source is harmless.
//
// The dialect is that of transformers 5 (utils/chat_template_utils.py): Jinja 3.1 with trim_blocks,
// lstrip_blocks, break and continue, generation blocks, and its own tojson, raise_exception, strftime_now,
// namespace and dict. Not supported: the filters urlize, wordwrap, xmlattr and random, autoescape, and
// characters by name in string literals (\N{...}).
//
// Errors: Failure (budget.h), whose type() is the name of the exception that transformers raises, for invalid
// templates, errors of templates and exceeded limits. A Template is immutable, and render() is thread-safe.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/template/interpreter.h"
#include "lm/template/parser.h"

namespace primus::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

struct Rendered {
  std::string text;
  // The texts of the generation blocks, in characters of `text`: an assistant's answers.
  std::vector<Span> generated;
};

class Template {
 public:
  // Parses `source`.
  explicit Template(std::string_view source);

  Rendered render(Variables variables, const std::tm& now, const Limits& limits = {}) const;
  // Returns whether the template has generation blocks.
  bool has_generation() const { return parsed_->has_generation; }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::shared_ptr<const Parsed> parsed_;
};

// Returns the local time, for Template::render.
std::tm local_time();

}  // namespace primus::jinja
