#include "lm/template/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

namespace primus::jinja {
namespace {

constexpr std::int64_t kScopeBytes = 96;  // rough memory of a scope

std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Sets a variable until the end of the object's life.
template <typename T>
class Replaced {
 public:
  Replaced(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Replaced() { variable_ = std::move(before_); }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  T& variable_;
  T before_;
};

std::shared_ptr<Scope> scope_within(Budget& budget, std::shared_ptr<Scope> parent) {
  budget.take_bytes(kScopeBytes);
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(parent);
  return scope;
}

}  // namespace

Value* Scope::find(std::string_view name) {
  const auto found = std::ranges::find(variables, name,
                                       [](const auto& variable) { return std::string_view(variable.first); });
  return found == variables.end() ? nullptr : &found->second;
}
void Scope::set(std::string_view name, Value value) {
  if (Value* const old = find(name))
    *old = std::move(value);
  else
    variables.emplace_back(name, std::move(value));
}

Interpreter::~Interpreter() {
  // Scopes, macros and namespaces can refer to each other, also in long chains. Emptying each of them in turn
  // releases all without recursion.
  for (const auto& made : namespaces_) made->items.clear();
  for (const auto& scope : captured_)
    for (Scope* at = scope.get(); at != nullptr; at = at->parent.get()) at->variables.clear();
}

Value Interpreter::keep(std::shared_ptr<NamespaceObject> made) {
  budget_.take_bytes(kScopeBytes);
  namespaces_.push_back(made);
  return {Type::kNamespace, std::move(made)};
}

std::string Interpreter::render(const Body& body, std::vector<std::pair<std::string, Value>> variables,
                                std::vector<Span>& spans) {
  std::string text;
  auto context = scope_within(budget_, nullptr);
  context->variables = std::move(variables);
  scope_ = scope_within(budget_, std::move(context));
  root_ = out_ = &text;
  spans_ = &spans;
  run(body);
  return text;
}

void Interpreter::write(std::string_view text) {
  budget_.take_bytes(static_cast<std::int64_t>(text.size()));
  out_->append(text);
}

std::string Interpreter::capture(const Body& body) {
  std::string text;
  const Replaced<std::string*> output(out_, &text);
  run(body);
  return text;
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const auto& statement : body)
    if (const Flow flow = run(*statement); flow != Flow::kNormal) return flow;
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run(const Statement& statement) {
  const Budget::Level level(budget_);
  budget_.take_steps();
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      break;
    case StatementKind::kPrint: {
      const Value value = evaluate(*statement.value);
      value.is(Type::kString) ? write(value.text()) : write(str(value));
      break;
    }
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      return run_loop(statement);
    case StatementKind::kSet:
      assign(*statement.target, evaluate(*statement.value));
      break;
    case StatementKind::kMacro:
      scope_->set(statement.macro->name, define(statement));
      break;
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock:
    case StatementKind::kScope:
      run_scoped(statement);
      break;
    case StatementKind::kCall:
      run_call(statement);
      break;
    case StatementKind::kWith:
      run_with(statement);
      break;
    case StatementKind::kGeneration:
      run_generation(statement);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kLoader:
      throw Failure("TypeError", "no loader for this environment specified");
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (const auto& [condition, body] : statement.branches)
    if (is_true(evaluate(*condition))) return run(body);
  return run(statement.otherwise);
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement) {
  return iterate(statement, elements(evaluate(*statement.value)), scope_, 1);
}

Interpreter::Flow Interpreter::iterate(const Statement& statement, std::vector<Value> source,
                                       const std::shared_ptr<Scope>& scope, int depth) {
  auto loop = std::make_shared<LoopObject>();
  loop->source = std::move(source);
  loop->depth = depth;
  loop->statement = &statement;
  loop->scope = scope;
  const Value loop_value(Type::kLoop, loop);
  for (; accept(*loop, loop->index + 1); ++loop->index) {
    budget_.take_steps();
    const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope));
    scope_->set("loop", loop_value);
    assign(*statement.target, loop->accepted[loop->index]);
    if (run(statement.body) == Flow::kBreak) break;
  }
  const bool was_empty = loop->accepted.empty();
  // A loop that a namespace still refers to must not keep its elements alive.
  loop->source.clear();
  loop->accepted.clear();
  loop->read = loop->index = 0;
  loop->scope.reset();
  loop->last_changed = {};
  if (!was_empty) return Flow::kNormal;
  const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope));
  return run(statement.otherwise);
}

void Interpreter::run_scoped(const Statement& statement) {
  if (statement.kind == StatementKind::kScope) {
    const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope_));
    run(statement.body);
    return;
  }
  Value value;
  {
    const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope_));
    value = text(capture(statement.body));
    if (statement.value) value = evaluate_filter(*statement.value, &value);
  }
  statement.kind == StatementKind::kFilterBlock ? write(str(value)) : assign(*statement.target, value);
}

void Interpreter::run_with(const Statement& statement) {
  // Evaluates all values in the outer scope, before any variable is set.
  std::vector<Value> values;
  for (const auto& assignment : statement.assignments) values.push_back(evaluate(*assignment.second));
  const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.assignments[i].first, values[i]);
  run(statement.body);
}

void Interpreter::run_call(const Statement& statement) {
  const Value caller = define(statement);
  write(str(evaluate_call(*statement.value, &caller)));
}

void Interpreter::run_generation(const Statement& statement) {
  const Replaced<std::shared_ptr<Scope>> inner(scope_, scope_within(budget_, scope_));
  const std::string generated = capture(statement.body);
  // Spans begin at the end of the text that is already written, even for a block within a macro or a captured
  // text. This is as in transformers.
  budget_.take_steps(static_cast<std::int64_t>(root_->size()) / 16);
  const std::int64_t begin = count_characters(*root_);
  spans_->push_back({begin, begin + count_characters(generated)});
  write(generated);
}

Value Interpreter::define(const Statement& statement) {
  budget_.take_bytes(kScopeBytes);
  auto macro = std::make_shared<MacroObject>();
  macro->syntax = statement.macro.get();
  macro->body = &statement.body;
  macro->scope = scope_;
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return {Type::kMacro, std::move(macro)};
}

void Interpreter::assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::kName) return scope_->set(target.name, value);
  if (target.kind == ExpressionKind::kNamespaceTarget) {
    const Value space = lookup(target.name);
    if (!space.is(Type::kNamespace))
      throw Failure("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    if (target.attribute.starts_with('_')) {
      throw Failure(
          "SecurityError",
          fmt::format("Chat templates cannot store underscore-prefixed attributes on a namespace, but "
                      "got '{}'. Please rename the attribute.",
                      target.attribute));
    }
    auto& object = space.as<NamespaceObject>();
    if (Value* const old = object.find(target.attribute)) {
      *old = value;
    } else {
      budget_.take_bytes(kScopeBytes);
      object.items.emplace_back(target.attribute, value);
    }
    return;
  }
  const std::vector<Value> parts = elements(value);
  if (parts.size() != target.children.size()) {
    throw Failure("ValueError",
                  parts.size() > target.children.size()
                      ? fmt::format("too many values to unpack (expected {})", target.children.size())
                      : fmt::format("not enough values to unpack (expected {}, got {})",
                                    target.children.size(), parts.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i]);
}

}  // namespace primus::jinja
