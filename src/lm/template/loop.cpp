// The variable `loop`, and calls of macros and of recursive loops.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"

namespace primus::jinja {

// Applies the loop's condition to further elements until `count` elements are accepted or none is left.
bool Interpreter::accept(LoopObject& loop, std::size_t count) {
  while (loop.accepted.size() < count && loop.read < loop.source.size()) {
    Value value = loop.source[loop.read++];
    bool accepted = true;
    if (loop.statement->condition) {
      auto inner = std::make_shared<Scope>();
      inner->parent = loop.scope;
      const std::shared_ptr<Scope> before = std::exchange(scope_, inner);
      try {
        assign(*loop.statement->target, value);
        accepted = is_true(evaluate(*loop.statement->condition));
      } catch (...) {
        scope_ = before;
        throw;
      }
      scope_ = before;
    }
    budget_.take_steps();
    if (accepted) loop.accepted.push_back(std::move(value));
  }
  return loop.accepted.size() >= count;
}

Value Interpreter::loop_attribute(const Value& self, const std::string& name) {
  auto& loop = self.as<LoopObject>();
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = [&] {
    accept(loop, loop.source.size() + loop.accepted.size() + 1);
    return static_cast<std::int64_t>(loop.accepted.size());
  };
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(!accept(loop, loop.index + 2));
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index);
  if (name == "revindex0") return Value::integer(length() - index - 1);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem") {
    if (index == 0) return make_undefined("there is no previous item");
    return loop.accepted[loop.index - 1];
  }
  if (name == "nextitem") {
    if (!accept(loop, loop.index + 2)) return make_undefined("there is no next item");
    return loop.accepted[loop.index + 1];
  }
  if (name != "cycle" && name != "changed") {
    return make_undefined(fmt::format("'jinja2.runtime.LoopContext object' has no attribute '{}'", name));
  }
  auto method = std::make_shared<MethodObject>();
  method->self = self;
  method->name = name;
  return {Type::kMethod, std::move(method)};
}

Value Interpreter::call_loop(LoopObject& loop, Args& args) {
  const Budget::Level level(budget_);
  if (!loop.statement->recursive || !loop.scope)
    throw Failure("TypeError", "The loop must have the 'recursive' marker to be called recursively.");
  const Parameters given(*this, "loop", args, {"iterable"}, 1);
  std::string text_of_loop;
  std::string* const before = std::exchange(out_, &text_of_loop);
  const std::shared_ptr<Scope> scope = loop.scope, outer = scope_;
  try {
    scope_ = scope;
    iterate(*loop.statement, elements(given[0]), scope, loop.depth + 1);
  } catch (...) {
    out_ = before;
    scope_ = outer;
    throw;
  }
  out_ = before;
  scope_ = outer;
  return text(std::move(text_of_loop));
}

Value Interpreter::call_macro(const Value& callee, Args& args) {
  const Budget::Level level(budget_);
  const auto& macro = callee.as<MacroObject>();
  const MacroSyntax& syntax = *macro.syntax;
  const std::size_t count = syntax.parameters.size();
  auto scope = std::make_shared<Scope>();
  scope->parent = macro.scope;
  budget_.take_bytes(static_cast<std::int64_t>(96 + 80 * count));
  const auto take = [&](std::string_view name) -> std::pair<bool, Value> {
    const auto found =
        std::ranges::find(args.named, name, [](const auto& item) { return std::string_view(item.first); });
    if (found == args.named.end()) return {false, Value()};
    Value value = std::move(found->second);
    args.named.erase(found);
    return {true, std::move(value)};
  };
  bool has_caller_parameter = false;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = syntax.parameters[i];
    has_caller_parameter |= name == "caller";
    std::pair<bool, Value> given(i < args.positional.size(), Value());
    if (given.first)
      given.second = args.positional[i];
    else
      given = take(name);
    if (!given.first) missing.push_back(i);
    scope->set(name, given.first ? given.second
                                 : make_undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  if (syntax.uses_caller && !has_caller_parameter) {
    const auto [has, caller] = take("caller");
    scope->set("caller", has ? caller : make_undefined("No caller defined"));
  }
  if (syntax.uses_kwargs) {
    const auto mapping = make_mapping();
    for (auto& [name, value] : args.named) put(budget_, *mapping, text(name), value);
    scope->set("kwargs", dict_of(mapping));
  } else if (!args.named.empty()) {
    throw Failure("TypeError", fmt::format("macro '{}' takes no keyword argument '{}'", syntax.name,
                                           args.named.front().first));
  }
  if (syntax.uses_varargs) {
    const auto first =
        args.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, args.positional.size()));
    scope->set("varargs", make_tuple(budget_, {first, args.positional.end()}));
  } else if (args.positional.size() > count) {
    throw Failure("TypeError",
                  fmt::format("macro '{}' takes not more than {} argument(s)", syntax.name, count));
  }
  std::string result;
  std::string* const before = std::exchange(out_, &result);
  const std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  try {
    const std::size_t first_default = count - syntax.defaults.size();
    for (const std::size_t i : missing)
      if (i >= first_default) scope->set(syntax.parameters[i], evaluate(*syntax.defaults[i - first_default]));
    run(*macro.body);
  } catch (...) {
    out_ = before;
    scope_ = outer;
    throw;
  }
  out_ = before;
  scope_ = outer;
  return text(std::move(result));
}

}  // namespace primus::jinja
