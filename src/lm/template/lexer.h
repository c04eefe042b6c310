// The tokens of a Jinja template, split as transformers' environment does: trim_blocks, lstrip_blocks, and no
// line statements.
//
// Errors: Failure "TemplateSyntaxError" with Jinja's message, located at the template's line. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lm/template/value.h"

namespace primus::jinja {

enum class TokenKind : std::uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, the name, the decoded string, or the operator
  Value number;
  int line = 1;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view sign) const { return kind == TokenKind::kOperator && text == sign; }
};

// Returns Jinja's words for a token in an error message.
std::string describe(const Token& token);

// Throws Failure "TemplateSyntaxError" at "chat template:LINE".
[[noreturn]] void fail_syntax(const std::string& message, int line, const char* type = "TemplateSyntaxError");

// Returns all tokens; the last one has the kind kEnd. `source` must be valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace primus::jinja
