// Evaluates expressions.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"

namespace primus::jinja {

Value Interpreter::lookup(const std::string& name) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get())
    if (const Value* const found = scope->find(name)) return *found;
  if (const Value* const found = global(name)) return *found;
  return undefined_name(name);
}

Value Interpreter::evaluate(const Expression& node) {
  const Budget::Level level(budget_);
  budget_.take_steps();
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.constant;
    case ExpressionKind::kName:
      return lookup(node.name);
    case ExpressionKind::kNot:
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
    case ExpressionKind::kCondition:
      return evaluate_logic(node);
    case ExpressionKind::kCompare:
      return Value::boolean(compare(node));
    case ExpressionKind::kCall:
      return evaluate_call(node, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(node, nullptr);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return evaluate_container(node);
    default:
      return evaluate_plain(node);
  }
}

Value Interpreter::evaluate_plain(const Expression& node) {
  switch (node.kind) {
    case ExpressionKind::kAttribute:
      return attribute(evaluate(*node.children[0]), node.name);
    case ExpressionKind::kItem: {
      const Value object = evaluate(*node.children[0]);
      if (node.children[1]->kind == ExpressionKind::kSlice) return slice(object, *node.children[1]);
      return item(object, evaluate(*node.children[1]));
    }
    case ExpressionKind::kTest: {
      const Value input = evaluate(*node.children[0]);
      Args args = arguments_of(*node.call);
      return Value::boolean(test(node.name, input, args));
    }
    case ExpressionKind::kBinary: {
      const Value left = evaluate(*node.children[0]);
      return binary(*this, node.name, left, evaluate(*node.children[1]));
    }
    case ExpressionKind::kNegate:
      return negate(evaluate(*node.children[0]));
    case ExpressionKind::kPlus: {
      const Value value = evaluate(*node.children[0]);
      if (value.is(Type::kUndefined)) fail_undefined(value);
      if (!value.is_number())
        throw Failure("TypeError", fmt::format("bad operand type for unary +: '{}'", type_name(value)));
      return value.is(Type::kBool) ? Value::integer(value.int_value()) : value;
    }
    case ExpressionKind::kConcat: {
      std::string joined;
      for (const ExpressionPtr& part : node.children) joined += str(evaluate(*part));
      return text(std::move(joined));
    }
    default:
      throw Failure("TypeError", "a slice is only possible within [ ]");
  }
}

Value Interpreter::evaluate_logic(const Expression& node) {
  Value first = evaluate(*node.children[0]);
  const bool holds = is_true(first);
  switch (node.kind) {
    case ExpressionKind::kNot:
      return Value::boolean(!holds);
    case ExpressionKind::kAnd:
      return holds ? evaluate(*node.children[1]) : first;
    case ExpressionKind::kOr:
      return holds ? first : evaluate(*node.children[1]);
    default:
      break;
  }
  if (holds) return evaluate(*node.children[1]);
  if (node.children[2]) return evaluate(*node.children[2]);
  return make_undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::evaluate_container(const Expression& node) {
  if (node.kind == ExpressionKind::kDict) {
    const auto mapping = make_mapping();
    for (std::size_t i = 0; i < node.children.size(); i += 2) {
      const Value key = evaluate(*node.children[i]);
      put(budget_, *mapping, key, evaluate(*node.children[i + 1]));
    }
    return dict_of(mapping);
  }
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) items.push_back(evaluate(*child));
  return node.kind == ExpressionKind::kList ? make_list(budget_, std::move(items))
                                            : make_tuple(budget_, std::move(items));
}

bool Interpreter::compare(const Expression& node) {
  Value left = evaluate(*node.children[0]);
  for (std::size_t i = 0; i < node.signs.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    const std::string& sign = node.signs[i];
    bool holds = false;
    if (sign == "==" || sign == "!=")
      holds = equal(budget_, left, right) == (sign == "==");
    else if (sign == "in" || sign == "not in")
      holds = contains(*this, right, left) == (sign == "in");
    else if (sign == "<")
      holds = less(budget_, left, right, sign);
    else if (sign == ">")
      holds = less(budget_, right, left, sign);
    else
      holds = equal(budget_, left, right) ||
              (sign == "<=" ? less(budget_, left, right, sign) : less(budget_, right, left, sign));
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Args Interpreter::arguments_of(const CallArguments& call) {
  Args args;
  for (const ExpressionPtr& value : call.positional) args.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : call.named) args.named.emplace_back(name, evaluate(*value));
  if (call.list) {
    for (Value& value : elements(evaluate(*call.list))) args.positional.push_back(std::move(value));
  }
  if (call.mapping) {
    const Value mapping = evaluate(*call.mapping);
    if (!mapping.is(Type::kDict)) throw Failure("TypeError", "argument after ** must be a mapping");
    for (const auto& [name, value] : mapping.as<MappingObject>().items) {
      if (!name.is(Type::kString)) throw Failure("TypeError", "keywords must be strings");
      budget_.take_bytes(64);
      args.named.emplace_back(name.text(), value);
    }
  }
  return args;
}

Value Interpreter::evaluate_call(const Expression& node, const Value* caller) {
  const Value callee = evaluate(*node.children[0]);
  Args args = arguments_of(*node.call);
  if (caller) args.named.emplace_back("caller", *caller);
  return call(callee, args);
}

Value Interpreter::evaluate_filter(const Expression& node, const Value* block) {
  Value input;
  if (!node.children[0])
    input = *block;
  else if (node.children[0]->kind == ExpressionKind::kFilter)
    input = evaluate_filter(*node.children[0], block);
  else
    input = evaluate(*node.children[0]);
  Args args = arguments_of(*node.call);
  return filter(node.name, input, args);
}

Value Interpreter::slice(const Value& object, const Expression& node) {
  const auto part = [&](std::size_t i) {
    return node.children[i] ? evaluate(*node.children[i]) : Value::none();
  };
  const Value begin = part(0), end = part(1), step = part(2);
  if (object.is(Type::kUndefined)) fail_undefined(object);
  const bool is_text = object.is(Type::kString);
  if (!is_text && !object.is_sequence() && !object.is(Type::kRange)) {
    return make_undefined(fmt::format("{} object has no element slice", type_name(object)));
  }
  const auto valid = [](const Value& value) { return value.is(Type::kNone) || value.is_integral(); };
  if (!valid(begin) || !valid(end) || !valid(step))
    return make_undefined(fmt::format("{} object has no element slice", type_name(object)));
  const auto is_one = step.is(Type::kNone) || (!step.is(Type::kBigInt) && step.int_value() == 1);
  const std::int64_t size = is_text                   ? length_of(object)
                            : object.is(Type::kRange) ? object.as<RangeObject>().size()
                                                      : static_cast<std::int64_t>(object.items().size());
  const std::vector<std::int64_t> positions = slice_positions(*this, size, begin, end, step);
  if (is_text && is_one) {
    budget_.take_steps(static_cast<std::int64_t>(object.text().size()) / 16);
    if (positions.empty()) return text("");
    return text(std::string(characters(object, positions.front(), positions.back() + 1)));
  }
  const std::vector<Value> all = elements(object);
  std::vector<Value> chosen;
  for (const std::int64_t position : positions) chosen.push_back(all[static_cast<std::size_t>(position)]);
  if (!is_text)
    return object.is(Type::kTuple) ? make_tuple(budget_, std::move(chosen))
                                   : make_list(budget_, std::move(chosen));
  std::string joined;
  for (const Value& character : chosen) joined += character.text();
  return text(std::move(joined));
}

}  // namespace primus::jinja
