// Parses the expressions of templates, for parser.cpp.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/template/parser.h"
#include "lm/template/token_stream.h"

namespace primus::jinja {

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& stream, const KnownNames& known) : stream_(stream), known_(known) {}

  ExpressionPtr expression(bool with_condition = true);
  // Parses an expression, or a tuple without parentheses. `end`: a name that ends the tuple.
  ExpressionPtr tuple(bool with_condition = true, std::string_view end = {}, bool in_parentheses = false);
  // Parses the target of an assignment. `end` as in tuple().
  ExpressionPtr target(bool with_namespace, std::string_view end = {}, bool with_tuple = true);
  std::string target_name();
  // Parses filters after `|`; with `first_inline`, the first filter has no `|`. `node`: their input, may be
  // null.
  ExpressionPtr filters(ExpressionPtr node, bool first_inline = false);

  // Macros whose bodies are being parsed. The parser records their use of `caller`, `varargs` and `kwargs`.
  std::vector<MacroSyntax*> macros;
  // Whether an unknown filter is an error only at run time (in a branch of a condition).
  bool defers_unknown = false;

 private:
  class Nested;
  ExpressionPtr make(ExpressionKind kind, int line, std::string name = {},
                     std::vector<ExpressionPtr> children = {}) const;
  ExpressionPtr condition();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary(bool with_namespace = false);
  ExpressionPtr name_or_constant(bool with_namespace);
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filtered(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr subscribed();
  ExpressionPtr call(ExpressionPtr node);
  ExpressionPtr test(ExpressionPtr node);
  std::unique_ptr<CallArguments> arguments();
  std::string dotted_name();
  ExpressionPtr left_operations(ExpressionPtr (ExpressionParser::*operand)(),
                                std::initializer_list<std::string_view> signs);
  void require_known(bool known, std::string_view kind, const std::string& name, int line) const;
  // Sets the depth of a finished expression, and limits it.
  ExpressionPtr finished(ExpressionPtr node) const;

  TokenStream& stream_;
  const KnownNames& known_;
  int level_ = 0;
};

}  // namespace primus::jinja
