#include "lm/template/parser.h"

#include <algorithm>
#include <set>

#include "lm/template/expression_parser.h"

namespace primus::jinja {
namespace {

constexpr int kMaxStatementDepth = 60;

class Parser {
 public:
  Parser(std::string_view source, const KnownNames& known)
      : stream_(tokenize(source)), expressions_(stream_, known) {}

  Parsed run() {
    Parsed parsed;
    parsed.body = body({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
  using Ends = std::vector<std::string_view>;

  static std::unique_ptr<Statement> make(StatementKind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  // Parses statements up to the name of one of the tags `ends`. If `ends` is empty, parses the entire
  // template.
  Body body(const Ends& ends) {
    if (++level_ > kMaxStatementDepth)
      fail_syntax("statements are nested too deeply", stream_.current().line, "RecursionError");
    if (!ends.empty()) ends_.push_back(ends);
    Body statements;
    while (stream_.current().kind != TokenKind::kEnd) {
      const Token& token = stream_.next();
      if (token.kind == TokenKind::kData) {
        auto text = make(StatementKind::kText, token.line);
        text->text = token.text;
        statements.push_back(std::move(text));
      } else if (token.kind == TokenKind::kVariableBegin) {
        auto print = make(StatementKind::kPrint, token.line);
        print->value = expressions_.tuple();
        stream_.expect(TokenKind::kVariableEnd, "end of print statement");
        statements.push_back(std::move(print));
      } else {
        if (stream_.current().kind == TokenKind::kName &&
            std::ranges::find(ends, stream_.current().text) != ends.end())
          break;
        statement(statements);
        stream_.expect_block_end();
      }
    }
    if (!ends.empty()) {
      if (stream_.current().kind == TokenKind::kEnd) fail_tag("");
      ends_.pop_back();
    }
    --level_;
    return statements;
  }
  // Parses the body of a tag, up to one of its end tags.
  Body block(const Ends& ends, bool drop_end = true) {
    stream_.skip_operator(":");
    stream_.expect_block_end();
    Body statements = body(ends);
    if (drop_end) stream_.next();
    return statements;
  }
  // Parses a body. `defers`: whether an unknown filter is an error only when it is used (in branches of
  // conditions).
  Body block_deferring(bool defers, const Ends& ends, bool drop_end = true) {
    const bool before = std::exchange(expressions_.defers_unknown, defers);
    Body statements = block(ends, drop_end);
    expressions_.defers_unknown = before;
    return statements;
  }

  // Throws the error for the unknown tag `name`, or for the end of the template if `name` is empty.
  [[noreturn]] void fail_tag(const std::string& name) const {
    std::string looking;
    bool expected = false;
    for (const Ends& ends : ends_) expected |= std::ranges::find(ends, name) != ends.end();
    if (!ends_.empty()) {
      for (const std::string_view end : ends_.back())
        looking += fmt::format("{}'{}'", looking.empty() ? "" : " or ", end);
    }
    std::string message =
        name.empty() ? "Unexpected end of template." : fmt::format("Encountered unknown tag '{}'.", name);
    if (!looking.empty() && expected) {
      message +=
          " You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for " +
          looking + ".";
    } else if (!looking.empty()) {
      message += " Jinja was looking for the following tags: " + looking + ".";
    }
    if (!tags_.empty())
      message += fmt::format(" The innermost block that needs to be closed is '{}'.", tags_.back());
    fail_syntax(message, stream_.current().line);
  }

  void statement(Body& out) {
    const Token token = stream_.current();
    if (token.kind != TokenKind::kName) fail_syntax("tag name expected", token.line);
    const std::string& tag = token.text;
    using Method = std::unique_ptr<Statement> (Parser::*)(int);
    static const std::vector<std::pair<std::string_view, Method>> kTags = {
        {"for", &Parser::loop},
        {"if", &Parser::condition},
        {"set", &Parser::set},
        {"macro", &Parser::macro},
        {"call", &Parser::call},
        {"filter", &Parser::filter},
        {"with", &Parser::with},
        {"print", &Parser::print},
        {"block", &Parser::named_block},
        {"autoescape", &Parser::autoescape},
        {"generation", &Parser::generation},
        {"break", &Parser::jump},
        {"continue", &Parser::jump},
        {"include", &Parser::loader},
        {"import", &Parser::loader},
        {"from", &Parser::loader},
        {"extends", &Parser::loader},
    };
    const auto found = std::ranges::find(kTags, tag, &std::pair<std::string_view, Method>::first);
    if (found == kTags.end()) fail_tag(tag);
    tags_.push_back(tag);
    stream_.next();
    out.push_back((this->*found->second)(token.line));
    tags_.pop_back();
  }

  std::unique_ptr<Statement> loop(int line) {
    auto made = make(StatementKind::kFor, line);
    made->target = expressions_.target(false, "in");
    stream_.expect_name("in");
    made->value = expressions_.tuple(false, "recursive");
    if (stream_.skip_name("if")) made->condition = expressions_.expression();
    made->recursive = stream_.skip_name("recursive");
    ++loops_;
    made->body = block_deferring(false, {"endfor", "else"}, false);
    --loops_;
    if (stream_.next().text == "else") made->otherwise = block_deferring(false, {"endfor"});
    return made;
  }

  std::unique_ptr<Statement> condition(int line) {
    auto made = make(StatementKind::kIf, line);
    while (true) {
      ExpressionPtr test = expressions_.tuple(false);
      Body then = block_deferring(true, {"elif", "else", "endif"}, false);
      made->branches.emplace_back(std::move(test), std::move(then));
      const std::string end = stream_.next().text;
      if (end == "elif") continue;
      if (end == "else") made->otherwise = block_deferring(true, {"endif"});
      return made;
    }
  }

  std::unique_ptr<Statement> set(int line) {
    auto made = make(StatementKind::kSet, line);
    made->target = expressions_.target(true);
    if (stream_.skip_operator("=")) {
      made->value = expressions_.tuple();
      return made;
    }
    made->kind = StatementKind::kSetBlock;
    made->value = expressions_.filters(nullptr);
    made->body = block_deferring(false, {"endset"});
    return made;
  }

  void signature(MacroSyntax& macro) {
    stream_.expect_operator("(");
    while (!stream_.current().is_operator(")")) {
      if (!macro.parameters.empty()) stream_.expect_operator(",");
      macro.parameters.push_back(expressions_.target_name());
      if (stream_.skip_operator("="))
        macro.defaults.push_back(expressions_.expression());
      else if (!macro.defaults.empty())
        fail_syntax("non-default argument follows default argument", stream_.current().line);
    }
    stream_.expect_operator(")");
  }
  void macro_body(Statement& made, const Ends& ends) {
    expressions_.macros.push_back(made.macro.get());
    const int loops = std::exchange(loops_, 0);
    made.body = block_deferring(false, ends);
    loops_ = loops;
    expressions_.macros.pop_back();
  }
  std::unique_ptr<Statement> macro(int line) {
    auto made = make(StatementKind::kMacro, line);
    made->macro = std::make_unique<MacroSyntax>();
    made->macro->name = expressions_.target_name();
    signature(*made->macro);
    macro_body(*made, {"endmacro"});
    return made;
  }
  std::unique_ptr<Statement> call(int line) {
    auto made = make(StatementKind::kCall, line);
    made->macro = std::make_unique<MacroSyntax>();
    made->macro->name = "caller";
    if (stream_.current().is_operator("(")) signature(*made->macro);
    made->value = expressions_.expression();
    if (made->value->kind != ExpressionKind::kCall) fail_syntax("expected call", line);
    macro_body(*made, {"endcall"});
    return made;
  }
  std::unique_ptr<Statement> generation(int line) {
    has_generation_ = true;
    auto made = make(StatementKind::kGeneration, line);
    const int loops = std::exchange(loops_, 0);
    made->body = block_deferring(false, {"endgeneration"});
    loops_ = loops;
    return made;
  }

  std::unique_ptr<Statement> filter(int line) {
    auto made = make(StatementKind::kFilterBlock, line);
    made->value = expressions_.filters(nullptr, true);
    made->body = block_deferring(false, {"endfilter"});
    return made;
  }

  std::unique_ptr<Statement> with(int line) {
    auto made = make(StatementKind::kWith, line);
    while (stream_.current().kind != TokenKind::kBlockEnd) {
      if (!made->assignments.empty()) stream_.expect_operator(",");
      ExpressionPtr target = expressions_.target(false, {}, false);
      stream_.expect_operator("=");
      made->assignments.emplace_back(std::move(target), expressions_.expression());
    }
    made->body = block_deferring(false, {"endwith"});
    return made;
  }

  std::unique_ptr<Statement> print(int line) {
    auto made = make(StatementKind::kScope, line);
    for (bool first = true; stream_.current().kind != TokenKind::kBlockEnd; first = false) {
      if (!first) stream_.expect_operator(",");
      auto item = make(StatementKind::kPrint, line);
      item->value = expressions_.expression();
      made->body.push_back(std::move(item));
    }
    return made;
  }

  std::unique_ptr<Statement> named_block(int line) {
    auto made = make(StatementKind::kScope, line);
    const std::string name = expressions_.target_name();
    if (!blocks_.insert(name).second)
      fail_syntax(fmt::format("block '{}' defined twice", name), line, "TemplateAssertionError");
    stream_.skip_name("scoped");
    stream_.skip_name("required");
    const int loops = std::exchange(loops_, 0);
    made->body = block_deferring(false, {"endblock"});
    loops_ = loops;
    stream_.skip_name(name);
    return made;
  }

  std::unique_ptr<Statement> autoescape(int line) {
    auto made = make(StatementKind::kScope, line);
    const ExpressionPtr on = expressions_.expression();
    if (on->kind != ExpressionKind::kConstant || is_true(on->constant))
      fail_syntax("automatic escaping is not supported", line);
    made->body = block_deferring(false, {"endautoescape"});
    return made;
  }

  std::unique_ptr<Statement> jump(int line) {
    if (loops_ == 0) fail_syntax(fmt::format("'{}' outside loop", tags_.back()), line, "SyntaxError");
    return make(tags_.back() == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
  }

  // include, import, from and extends: transformers has no loader, so these statements fail when they are
  // executed.
  std::unique_ptr<Statement> loader(int line) {
    auto made = make(StatementKind::kLoader, line);
    made->value = expressions_.expression();
    while (stream_.current().kind == TokenKind::kName || stream_.current().is_operator(",")) stream_.next();
    return made;
  }

  TokenStream stream_;
  ExpressionParser expressions_;
  std::vector<Ends> ends_;         // end tags of the open blocks
  std::vector<std::string> tags_;  // names of the open tags
  std::set<std::string> blocks_;
  int loops_ = 0;  // loops that a break could leave
  int level_ = 0;
  bool has_generation_ = false;
};

}  // namespace

Parsed parse_template(std::string_view source, const KnownNames& known) {
  return Parser(source, known).run();
}

}  // namespace primus::jinja
