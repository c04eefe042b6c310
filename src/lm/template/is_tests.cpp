// Jinja's tests, such as `defined` in `x is defined`.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

// `other` is the first argument, if there is one.
using Test = bool (*)(Interpreter& run, const Value& value, const Value* other);

const Value& needed(const Value* other) {
  if (other == nullptr) throw Failure("TypeError", "the test needs an argument");
  return *other;
}

bool is_same(Interpreter& run, const Value& value, const Value* other) {
  const Value& same = needed(other);
  if (value.type() != same.type()) return false;
  if (value.object()) {
    return value.object() == same.object() || (value.is(Type::kString) && value.text() == same.text());
  }
  return equal(run.budget(), value, same);
}

bool divides(Interpreter& run, const Value& value, const Value& by) {
  return equal(run.budget(), binary(run, "%", value, by), Value::integer(0));
}

bool has_case(Interpreter& run, const Value& value, const char* method) {
  Args none;
  return is_true(run.method(run.text(run.str(value)), method, none));
}

const std::map<std::string_view, Test>& all_tests() {
  static const auto kEqual = [](Interpreter& run, const Value& value, const Value* other) {
    return equal(run.budget(), value, needed(other));
  };
  static const auto kNotEqual = [](Interpreter& run, const Value& value, const Value* other) {
    return !equal(run.budget(), value, needed(other));
  };
  static const auto kLess = [](Interpreter& run, const Value& value, const Value* other) {
    return less(run.budget(), value, needed(other), "<");
  };
  static const auto kGreater = [](Interpreter& run, const Value& value, const Value* other) {
    return less(run.budget(), needed(other), value, ">");
  };
  static const auto kLessEqual = [](Interpreter& run, const Value& value, const Value* other) {
    return equal(run.budget(), value, needed(other)) || less(run.budget(), value, needed(other), "<=");
  };
  static const auto kGreaterEqual = [](Interpreter& run, const Value& value, const Value* other) {
    return equal(run.budget(), value, needed(other)) || less(run.budget(), needed(other), value, ">=");
  };
  static const std::map<std::string_view, Test> tests = {
      {"defined", [](Interpreter&, const Value& v, const Value*) { return !v.is(Type::kUndefined); }},
      {"undefined", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kUndefined); }},
      {"none", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kNone); }},
      {"boolean", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kBool); }},
      {"true", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kBool) && is_true(v); }},
      {"false", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kBool) && !is_true(v); }},
      {"integer",
       [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kInt) || v.is(Type::kBigInt); }},
      {"float", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kFloat); }},
      {"number", [](Interpreter&, const Value& v, const Value*) { return v.is_number(); }},
      {"string", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kString); }},
      {"mapping", [](Interpreter&, const Value& v, const Value*) { return v.is(Type::kDict); }},
      {"iterable", [](Interpreter&, const Value& v, const Value*) { return is_iterable(v); }},
      {"sequence",
       [](Interpreter&, const Value& v, const Value*) {
         return v.is(Type::kString) || v.is_sequence() || v.is(Type::kDict) || v.is(Type::kRange) ||
                v.is(Type::kUndefined);
       }},
      {"callable",
       [](Interpreter&, const Value& v, const Value*) {
         return v.is(Type::kFunction) || v.is(Type::kMacro) || v.is(Type::kMethod) || v.is(Type::kLoop) ||
                v.is(Type::kUndefined);
       }},
      {"escaped", [](Interpreter&, const Value&, const Value*) { return false; }},
      {"even",
       [](Interpreter& run, const Value& v, const Value*) { return divides(run, v, Value::integer(2)); }},
      {"odd",
       [](Interpreter& run, const Value& v, const Value*) {
         return equal(run.budget(), binary(run, "%", v, Value::integer(2)), Value::integer(1));
       }},
      {"divisibleby",
       [](Interpreter& run, const Value& v, const Value* other) { return divides(run, v, needed(other)); }},
      {"upper", [](Interpreter& run, const Value& v, const Value*) { return has_case(run, v, "isupper"); }},
      {"lower", [](Interpreter& run, const Value& v, const Value*) { return has_case(run, v, "islower"); }},
      {"in",
       [](Interpreter& run, const Value& v, const Value* other) { return contains(run, needed(other), v); }},
      {"sameas", is_same},
      {"filter", [](Interpreter& run, const Value& v, const Value*) { return is_filter(run.str(v)); }},
      {"test", [](Interpreter& run, const Value& v, const Value*) { return is_test(run.str(v)); }},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"==", kEqual},
      {"ne", kNotEqual},
      {"!=", kNotEqual},
      {"lt", kLess},
      {"lessthan", kLess},
      {"<", kLess},
      {"gt", kGreater},
      {"greaterthan", kGreater},
      {">", kGreater},
      {"le", kLessEqual},
      {"<=", kLessEqual},
      {"ge", kGreaterEqual},
      {">=", kGreaterEqual},
  };
  return tests;
}

}  // namespace

bool is_test(std::string_view name) { return all_tests().contains(name); }

bool Interpreter::test(const std::string& name, const Value& input, Args& args) {
  const auto found = all_tests().find(name);
  if (found == all_tests().end())
    throw Failure("TemplateRuntimeError", fmt::format("No test named '{}' found.", name));
  budget_.take_steps();
  return found->second(*this, input, args.positional.empty() ? nullptr : &args.positional.front());
}

}  // namespace primus::jinja
