// Reads tokens one after another, and reports unexpected tokens with Jinja's messages.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/template/lexer.h"

namespace primus::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  // Returns the current token and advances to the next token, unless the current token is the end.
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_name(std::string_view name) {
    const bool found = current().is_name(name);
    if (found) next();
    return found;
  }
  bool skip_operator(std::string_view sign) {
    const bool found = current().is_operator(sign);
    if (found) next();
    return found;
  }
  const Token& expect(TokenKind kind, std::string_view described) {
    if (current().kind != kind) fail_expected(described);
    return next();
  }
  const Token& expect_operator(std::string_view sign) {
    if (!current().is_operator(sign)) fail_expected(sign);
    return next();
  }
  void expect_name(std::string_view name) {
    if (!current().is_name(name)) fail_expected(name);
    next();
  }
  const std::string& expect_any_name() { return expect(TokenKind::kName, "name").text; }
  void expect_block_end() { expect(TokenKind::kBlockEnd, "end of statement block"); }

  [[noreturn]] void fail_expected(std::string_view described) const {
    if (current().kind == TokenKind::kEnd)
      fail_syntax(fmt::format("unexpected end of template, expected '{}'.", described), current().line);
    fail_syntax(fmt::format("expected token '{}', got '{}'", described, describe(current())), current().line);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace primus::jinja
