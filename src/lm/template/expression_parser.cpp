#include "lm/template/expression_parser.h"

#include <algorithm>

namespace primus::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;

[[noreturn]] void fail_depth(int line) {
  fail_syntax("expressions are nested too deeply", line, "RecursionError");
}

}  // namespace

// Limits the recursion of the parser.
class ExpressionParser::Nested {
 public:
  explicit Nested(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.level_ > kMaxExpressionDepth) {
      --parser_.level_;
      fail_depth(parser_.stream_.current().line);
    }
  }
  ~Nested() { --parser_.level_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  ExpressionParser& parser_;
};

ExpressionPtr ExpressionParser::finished(ExpressionPtr node) const {
  int depth = 0;
  const auto visit = [&](const ExpressionPtr& child) {
    if (child) depth = std::max(depth, child->depth);
  };
  for (const ExpressionPtr& child : node->children) visit(child);
  if (node->call) {
    for (const ExpressionPtr& child : node->call->positional) visit(child);
    for (const auto& named : node->call->named) visit(named.second);
    visit(node->call->list);
    visit(node->call->mapping);
  }
  node->depth = depth + 1;
  if (node->depth > kMaxExpressionDepth) fail_depth(node->line);
  return node;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, int line, std::string name,
                                     std::vector<ExpressionPtr> children) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  node->children = std::move(children);
  return finished(std::move(node));
}

namespace {

std::vector<ExpressionPtr> children_of(ExpressionPtr a, ExpressionPtr b = nullptr) {
  std::vector<ExpressionPtr> children;
  children.push_back(std::move(a));
  if (b) children.push_back(std::move(b));
  return children;
}

}  // namespace

ExpressionPtr ExpressionParser::expression(bool with_condition) {
  const Nested nested(*this);
  return with_condition ? condition() : disjunction();
}

ExpressionPtr ExpressionParser::condition() {
  const Nested nested(*this);
  const int line = stream_.current().line;
  const bool deferred = defers_unknown;
  ExpressionPtr value = disjunction();
  while (stream_.skip_name("if")) {
    defers_unknown = true;
    auto node = std::make_unique<Expression>();
    node->kind = ExpressionKind::kCondition;
    node->line = line;
    node->children.push_back(disjunction());
    node->children.push_back(std::move(value));
    node->children.push_back(stream_.skip_name("else") ? condition() : nullptr);
    value = finished(std::move(node));
    defers_unknown = deferred;
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (stream_.current().is_name("or")) {
    const int line = stream_.next().line;
    left = make(ExpressionKind::kOr, line, "", children_of(std::move(left), conjunction()));
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (stream_.current().is_name("and")) {
    const int line = stream_.next().line;
    left = make(ExpressionKind::kAnd, line, "", children_of(std::move(left), negation()));
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const Nested nested(*this);
  if (!stream_.current().is_name("not")) return comparison();
  const int line = stream_.next().line;
  return make(ExpressionKind::kNot, line, "", children_of(negation()));
}

ExpressionPtr ExpressionParser::comparison() {
  auto node = std::make_unique<Expression>();
  node->kind = ExpressionKind::kCompare;
  node->line = stream_.current().line;
  node->children.push_back(sum());
  while (true) {
    static constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
    const Token& token = stream_.current();
    if (token.kind == TokenKind::kOperator && std::ranges::find(kSigns, token.text) != std::end(kSigns)) {
      node->signs.push_back(stream_.next().text);
    } else if (stream_.skip_name("in")) {
      node->signs.emplace_back("in");
    } else if (token.is_name("not") && stream_.look().is_name("in")) {
      stream_.next();
      stream_.next();
      node->signs.emplace_back("not in");
    } else {
      break;
    }
    node->children.push_back(sum());
  }
  if (node->signs.empty()) return std::move(node->children.front());
  return finished(std::move(node));
}

ExpressionPtr ExpressionParser::left_operations(ExpressionPtr (ExpressionParser::*operand)(),
                                                std::initializer_list<std::string_view> signs) {
  ExpressionPtr left = (this->*operand)();
  while (stream_.current().kind == TokenKind::kOperator &&
         std::ranges::find(signs, stream_.current().text) != signs.end()) {
    const Token sign = stream_.next();
    left =
        make(ExpressionKind::kBinary, sign.line, sign.text, children_of(std::move(left), (this->*operand)()));
  }
  return left;
}

ExpressionPtr ExpressionParser::sum() {
  return left_operations(&ExpressionParser::concatenation, {"+", "-"});
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = stream_.current().line;
  std::vector<ExpressionPtr> parts = children_of(product());
  while (stream_.skip_operator("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts.front());
  return make(ExpressionKind::kConcat, line, "", std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  return left_operations(&ExpressionParser::power, {"*", "/", "//", "%"});
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (stream_.current().is_operator("**")) {
    const int line = stream_.next().line;
    left = make(ExpressionKind::kBinary, line, "**", children_of(std::move(left), unary()));
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = stream_.current().line;
  ExpressionPtr node;
  if (stream_.skip_operator("-"))
    node = make(ExpressionKind::kNegate, line, "", children_of(unary(false)));
  else if (stream_.skip_operator("+"))
    node = make(ExpressionKind::kPlus, line, "", children_of(unary(false)));
  else
    node = primary();
  node = postfix(std::move(node));
  return with_filter ? filtered(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::name_or_constant(bool with_namespace) {
  const Token token = stream_.next();
  const auto constant = [&](Value value) {
    ExpressionPtr node = make(ExpressionKind::kConstant, token.line, token.text);
    node->constant = std::move(value);
    return node;
  };
  if (token.text == "true" || token.text == "True") return constant(Value::boolean(true));
  if (token.text == "false" || token.text == "False") return constant(Value::boolean(false));
  if (token.text == "none" || token.text == "None") return constant(Value::none());
  if (with_namespace && stream_.skip_operator(".")) {
    ExpressionPtr node = make(ExpressionKind::kNamespaceTarget, token.line, token.text);
    node->attribute = stream_.expect_any_name();
    return node;
  }
  if (token.text.front() >= '0' && token.text.front() <= '9')
    fail_syntax("Invalid character in identifier", token.line);
  for (MacroSyntax* const macro : macros) {
    macro->uses_caller |= token.text == "caller";
    macro->uses_varargs |= token.text == "varargs";
    macro->uses_kwargs |= token.text == "kwargs";
  }
  return make(ExpressionKind::kName, token.line, token.text);
}

ExpressionPtr ExpressionParser::primary(bool with_namespace) {
  const Token token = stream_.current();
  switch (token.kind) {
    case TokenKind::kName:
      return name_or_constant(with_namespace);
    case TokenKind::kString: {
      std::string text;
      while (stream_.current().kind == TokenKind::kString) text += stream_.next().text;
      Budget unlimited({.bytes = INT64_MAX});
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      node->constant = make_text(unlimited, std::move(text));
      return node;
    }
    case TokenKind::kNumber: {
      stream_.next();
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      node->constant = token.number;
      return node;
    }
    default:
      break;
  }
  if (stream_.skip_operator("(")) {
    const Nested nested(*this);
    ExpressionPtr node = tuple(true, {}, true);
    stream_.expect_operator(")");
    return node;
  }
  if (token.is_operator("[")) return list();
  if (token.is_operator("{")) return dict();
  fail_syntax(fmt::format("unexpected '{}'", describe(token)), token.line);
}

ExpressionPtr ExpressionParser::tuple(bool with_condition, std::string_view end, bool in_parentheses) {
  const int line = stream_.current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) stream_.expect_operator(",");
    const Token& token = stream_.current();
    if (token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
        token.is_operator(")") || (!end.empty() && token.is_name(end)))
      break;
    items.push_back(expression(with_condition));
    if (!stream_.current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!in_parentheses) {
      fail_syntax(fmt::format("Expected an expression, got '{}'", describe(stream_.current())),
                  stream_.current().line);
    }
  }
  return make(ExpressionKind::kTuple, line, "", std::move(items));
}

ExpressionPtr ExpressionParser::target(bool with_namespace, std::string_view end, bool with_tuple) {
  const int line = stream_.current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) stream_.expect_operator(",");
    const Token& token = stream_.current();
    if (token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
        token.is_operator(")") || (!end.empty() && token.is_name(end)))
      break;
    items.push_back(primary(with_namespace));
    if (!with_tuple || !stream_.current().is_operator(",")) break;
    is_tuple = true;
  }
  if (items.empty())
    fail_syntax(fmt::format("Expected an expression, got '{}'", describe(stream_.current())), line);
  ExpressionPtr node =
      is_tuple ? make(ExpressionKind::kTuple, line, "", std::move(items)) : std::move(items.front());
  const auto can_assign = [](const auto& self, const Expression& target) -> bool {
    if (target.kind == ExpressionKind::kTuple)
      return std::ranges::all_of(target.children,
                                 [&](const ExpressionPtr& child) { return self(self, *child); });
    return target.kind == ExpressionKind::kName || target.kind == ExpressionKind::kNamespaceTarget;
  };
  if (!can_assign(can_assign, *node)) fail_syntax("can't assign to this expression", line);
  return node;
}

std::string ExpressionParser::target_name() {
  const Token token = stream_.expect(TokenKind::kName, "name");
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::ranges::find(kConstants, token.text) != std::end(kConstants))
    fail_syntax("can't assign to 'name'", token.line);
  return token.text;
}

ExpressionPtr ExpressionParser::list() {
  const Nested nested(*this);
  const int line = stream_.expect_operator("[").line;
  std::vector<ExpressionPtr> items;
  while (!stream_.current().is_operator("]")) {
    if (!items.empty()) stream_.expect_operator(",");
    if (stream_.current().is_operator("]")) break;
    items.push_back(expression());
  }
  stream_.expect_operator("]");
  return make(ExpressionKind::kList, line, "", std::move(items));
}

ExpressionPtr ExpressionParser::dict() {
  const Nested nested(*this);
  const int line = stream_.expect_operator("{").line;
  std::vector<ExpressionPtr> items;
  while (!stream_.current().is_operator("}")) {
    if (!items.empty()) stream_.expect_operator(",");
    if (stream_.current().is_operator("}")) break;
    items.push_back(expression());
    stream_.expect_operator(":");
    items.push_back(expression());
  }
  stream_.expect_operator("}");
  return make(ExpressionKind::kDict, line, "", std::move(items));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
  while (true) {
    if (stream_.current().is_operator(".") || stream_.current().is_operator("["))
      node = subscript(std::move(node));
    else if (stream_.current().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr ExpressionParser::filtered(ExpressionPtr node) {
  while (true) {
    if (stream_.current().is_operator("|"))
      node = filters(std::move(node));
    else if (stream_.current().is_name("is"))
      node = test(std::move(node));
    else if (stream_.current().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr node) {
  const Token token = stream_.next();
  if (token.text == ".") {
    const Token attribute = stream_.next();
    if (attribute.kind == TokenKind::kName)
      return make(ExpressionKind::kAttribute, token.line, attribute.text, children_of(std::move(node)));
    if (attribute.kind != TokenKind::kNumber || !attribute.number.is_integral())
      fail_syntax("expected name or number", attribute.line);
    ExpressionPtr index = make(ExpressionKind::kConstant, token.line);
    index->constant = attribute.number;
    return make(ExpressionKind::kItem, token.line, "", children_of(std::move(node), std::move(index)));
  }
  std::vector<ExpressionPtr> items;
  bool has_comma = false;
  while (!stream_.current().is_operator("]")) {
    if (!items.empty()) {
      stream_.expect_operator(",");
      has_comma = true;
    }
    items.push_back(subscribed());
  }
  stream_.expect_operator("]");
  ExpressionPtr index = items.size() == 1 && !has_comma
                            ? std::move(items.front())
                            : make(ExpressionKind::kTuple, token.line, "", std::move(items));
  return make(ExpressionKind::kItem, token.line, "", children_of(std::move(node), std::move(index)));
}

ExpressionPtr ExpressionParser::subscribed() {
  const int line = stream_.current().line;
  const auto ends = [&] {
    const Token& token = stream_.current();
    return token.is_operator("]") || token.is_operator(",") || token.is_operator(":");
  };
  ExpressionPtr begin = stream_.current().is_operator(":") ? nullptr : expression();
  if (!stream_.skip_operator(":")) return begin;
  auto slice = std::make_unique<Expression>();
  slice->kind = ExpressionKind::kSlice;
  slice->line = line;
  slice->children.push_back(std::move(begin));
  slice->children.push_back(ends() ? nullptr : expression());
  const bool has_step = stream_.skip_operator(":");
  slice->children.push_back(has_step && !ends() ? expression() : nullptr);
  return finished(std::move(slice));
}

std::unique_ptr<CallArguments> ExpressionParser::arguments() {
  const Nested nested(*this);
  const int line = stream_.expect_operator("(").line;
  auto call = std::make_unique<CallArguments>();
  const auto ensure = [line](bool valid) {
    if (!valid) fail_syntax("invalid syntax for function call expression", line);
  };
  for (bool first = true; !stream_.current().is_operator(")"); first = false) {
    if (!first) {
      stream_.expect_operator(",");
      if (stream_.current().is_operator(")")) break;
    }
    if (stream_.skip_operator("*")) {
      ensure(!call->list && !call->mapping);
      call->list = expression();
    } else if (stream_.skip_operator("**")) {
      ensure(!call->mapping);
      call->mapping = expression();
    } else if (stream_.current().kind == TokenKind::kName && stream_.look().is_operator("=")) {
      ensure(!call->mapping);
      std::string name = stream_.next().text;
      stream_.next();
      call->named.emplace_back(std::move(name), expression());
    } else {
      ensure(!call->list && !call->mapping && call->named.empty());
      call->positional.push_back(expression());
    }
  }
  stream_.expect_operator(")");
  return call;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr node) {
  const int line = stream_.current().line;
  ExpressionPtr made = make(ExpressionKind::kCall, line, "", children_of(std::move(node)));
  made->call = arguments();
  return finished(std::move(made));
}

std::string ExpressionParser::dotted_name() {
  std::string name = stream_.expect_any_name();
  while (stream_.skip_operator(".")) name += "." + stream_.expect_any_name();
  return name;
}

void ExpressionParser::require_known(bool known, std::string_view kind, const std::string& name,
                                     int line) const {
  if (!known && !defers_unknown)
    fail_syntax(fmt::format("No {} named '{}'.", kind, name), line, "TemplateAssertionError");
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr node, bool first_inline) {
  while (first_inline || stream_.current().is_operator("|")) {
    if (!first_inline) stream_.next();
    first_inline = false;
    const int line = stream_.current().line;
    std::string name = dotted_name();
    require_known(known_.is_filter(name), "filter", name, line);
    auto made = std::make_unique<Expression>();
    made->kind = ExpressionKind::kFilter;
    made->line = line;
    made->name = std::move(name);
    made->children.push_back(std::move(node));
    made->call = stream_.current().is_operator("(") ? arguments() : std::make_unique<CallArguments>();
    node = finished(std::move(made));
  }
  return node;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr node) {
  const int line = stream_.next().line;
  const bool negated = stream_.skip_name("not");
  std::string name = dotted_name();
  require_known(known_.is_test(name), "test", name, line);
  ExpressionPtr made = make(ExpressionKind::kTest, line, std::move(name), children_of(std::move(node)));
  made->call = std::make_unique<CallArguments>();
  const Token& token = stream_.current();
  const bool has_operand =
      token.kind == TokenKind::kString || token.kind == TokenKind::kNumber || token.is_operator("[") ||
      token.is_operator("{") ||
      (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" && token.text != "and");
  if (token.is_operator("(")) {
    made->call = arguments();
  } else if (has_operand) {
    if (token.is_name("is")) fail_syntax("You cannot chain multiple tests with is", token.line);
    made->call->positional.push_back(postfix(primary()));
  }
  made = finished(std::move(made));
  if (!negated) return made;
  return make(ExpressionKind::kNot, line, "", children_of(std::move(made)));
}

}  // namespace primus::jinja
