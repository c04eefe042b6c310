// Implements Python's operators.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"

namespace primus::jinja {
namespace {

[[noreturn]] void fail_operands(const std::string& sign, const Value& a, const Value& b) {
  throw Failure("TypeError", fmt::format("unsupported operand type(s) for {}: '{}' and '{}'",
                                         sign == "**" ? "** or pow()" : sign, type_name(a), type_name(b)));
}

[[noreturn]] void fail_division(const char* what) { throw Failure("ZeroDivisionError", what); }

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value float_operation(const std::string& sign, const Value& left, const Value& right) {
  const double a = left.number(), b = right.number();
  if (sign == "+") return Value::real(a + b);
  if (sign == "-") return Value::real(a - b);
  if (sign == "*") return Value::real(a * b);
  if (sign == "**") {
    if (a == 0 && b < 0) fail_division("0.0 cannot be raised to a negative power");
    if (a < 0 && std::trunc(b) != b) throw Failure("TypeError", "complex numbers are not supported");
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
      throw Failure("OverflowError", "(34, 'Numerical result out of range')");
    return Value::real(power);
  }
  if (b == 0) {
    fail_division(sign == "/"    ? (left.is_integral() && right.is_integral() ? "division by zero"
                                                                              : "float division by zero")
                  : sign == "//" ? "float floor division by zero"
                                 : "float modulo");
  }
  if (sign == "/") return Value::real(a / b);
  if (sign == "%") return Value::real(float_modulo(a, b));
  return Value::real(std::floor((a - float_modulo(a, b)) / b + 0.25));
}

Value power(Interpreter& run, const BigInteger& base, std::int64_t exponent) {
  BigInteger result(1), factor = base;
  for (; exponent > 0; exponent >>= 1) {
    run.budget().take_steps(64);
    if ((exponent & 1) != 0) result = result * factor;
    if (exponent > 1) {
      if (factor.is_zero() || factor == BigInteger(1)) break;
      factor = factor * factor;
    }
  }
  return Value::integer(result);
}

// Applies an operator to two integral operands.
Value integer_operation(Interpreter& run, const std::string& sign, const Value& left, const Value& right) {
  if (!left.is(Type::kBigInt) && !right.is(Type::kBigInt) && sign != "**") {
    const std::int64_t a = left.int_value(), b = right.int_value();
    std::int64_t result = 0;
    if (sign == "+" && !__builtin_add_overflow(a, b, &result)) return Value::integer(result);
    if (sign == "-" && !__builtin_sub_overflow(a, b, &result)) return Value::integer(result);
    if (sign == "*" && !__builtin_mul_overflow(a, b, &result)) return Value::integer(result);
  }
  run.budget().take_steps(256);
  const BigInteger a = left.big(), b = right.big();
  if (sign == "+") return Value::integer(a + b);
  if (sign == "-") return Value::integer(a - b);
  if (sign == "*") return Value::integer(a * b);
  if (sign == "**") {
    const std::int64_t exponent = index_of(right);
    return exponent < 0 ? float_operation(sign, left, right) : power(run, a, exponent);
  }
  if (b.is_zero()) fail_division("integer division or modulo by zero");
  run.budget().take_steps(static_cast<std::int64_t>(a.str().size()) * 64);
  const auto [quotient, remainder] = BigInteger::floor_divide(a, b);
  return Value::integer(sign == "//" ? quotient : remainder);
}

Value repeated(Interpreter& run, const Value& sequence, const Value& times) {
  const std::int64_t count = std::max<std::int64_t>(index_of(times), 0);
  if (sequence.is(Type::kString)) {
    const std::string& text = sequence.text();
    run.budget().take_product(count, static_cast<std::int64_t>(text.size()));
    std::string result;
    if (!text.empty()) {
      result.reserve(text.size() * static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) result += text;
    }
    return run.text(std::move(result));
  }
  const std::vector<Value>& items = sequence.items();
  run.budget().take_product(count, static_cast<std::int64_t>(items.size() * sizeof(Value)));
  std::vector<Value> result;
  if (!items.empty())
    for (std::int64_t i = 0; i < count; ++i) result.insert(result.end(), items.begin(), items.end());
  return sequence.is(Type::kList) ? make_list(run.budget(), std::move(result))
                                  : make_tuple(run.budget(), std::move(result));
}

Value add(Interpreter& run, const Value& a, const Value& b) {
  if (a.is(Type::kString) && b.is(Type::kString)) {
    run.budget().take_bytes(static_cast<std::int64_t>(a.text().size() + b.text().size()));
    return run.text(a.text() + b.text());
  }
  if (a.is_sequence() && a.type() == b.type()) {
    std::vector<Value> joined = run.elements(a);
    for (Value& value : run.elements(b)) joined.push_back(std::move(value));
    return a.is(Type::kList) ? make_list(run.budget(), std::move(joined))
                             : make_tuple(run.budget(), std::move(joined));
  }
  if (a.is(Type::kString) || a.is_sequence()) {
    const std::string_view name = type_name(a);
    throw Failure("TypeError",
                  fmt::format("can only concatenate {} (not \"{}\") to {}", name, type_name(b), name));
  }
  fail_operands("+", a, b);
}

}  // namespace

Value binary(Interpreter& run, const std::string& sign, const Value& a, const Value& b) {
  try {
    if (sign == "%" && a.is(Type::kString)) return format_percent(run, a, b);
    if (a.is(Type::kUndefined)) fail_undefined(a);
    if (b.is(Type::kUndefined)) fail_undefined(b);
    if (a.is_number() && b.is_number()) {
      const bool is_float = a.is(Type::kFloat) || b.is(Type::kFloat) || sign == "/";
      return is_float ? float_operation(sign, a, b) : integer_operation(run, sign, a, b);
    }
    if (sign == "+") return add(run, a, b);
    const auto is_repeatable = [](const Value& value) {
      return value.is(Type::kString) || value.is_sequence();
    };
    if (sign == "*" && is_repeatable(a)) {
      if (!b.is_integral())
        throw Failure("TypeError",
                      fmt::format("can't multiply sequence by non-int of type '{}'", type_name(b)));
      return repeated(run, a, b);
    }
    if (sign == "*" && is_repeatable(b) && a.is_integral()) return repeated(run, b, a);
  } catch (const std::length_error& error) {
    throw Failure("ValueError", error.what());
  }
  fail_operands(sign, a, b);
}

Value negate(const Value& value) {
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is(Type::kFloat)) return Value::real(-value.float_value());
  if (!value.is_integral())
    throw Failure("TypeError", fmt::format("bad operand type for unary -: '{}'", type_name(value)));
  return Value::integer(-value.big());
}

bool contains(Interpreter& run, const Value& container, const Value& value) {
  switch (container.type()) {
    case Type::kString:
      if (value.is(Type::kUndefined)) fail_undefined(value);
      if (!value.is(Type::kString)) {
        throw Failure("TypeError",
                      fmt::format("'in <string>' requires string as left operand, not {}", type_name(value)));
      }
      run.budget().take_steps(static_cast<std::int64_t>(container.text().size()) / 16);
      return container.text().find(value.text()) != std::string::npos;
    case Type::kDict:
      return find(run.budget(), container, value) != nullptr;
    case Type::kList:
    case Type::kTuple:
      return std::ranges::any_of(container.items(),
                                 [&](const Value& item) { return equal(run.budget(), item, value); });
    default:
      break;
  }
  if (!is_iterable(container))
    throw Failure("TypeError", fmt::format("argument of type '{}' is not iterable", type_name(container)));
  return std::ranges::any_of(run.elements(container),
                             [&](const Value& item) { return equal(run.budget(), item, value); });
}

std::vector<std::int64_t> slice_positions(Interpreter& run, std::int64_t size, const Value& begin,
                                          const Value& end, const Value& step) {
  const std::int64_t stride = step.is(Type::kNone) ? 1 : index_of(step);
  if (stride == 0) throw Failure("ValueError", "slice step cannot be zero");
  const std::int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto position = [&](const Value& value, std::int64_t otherwise) {
    if (value.is(Type::kNone)) return otherwise;
    const std::int64_t index = index_of(value);
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const std::int64_t from = position(begin, stride > 0 ? low : high);
  const std::int64_t to = position(end, stride > 0 ? high : low);
  const std::int64_t distance = stride > 0 ? to - from : from - to;
  // A stride longer than the sequence takes one element. Shortens such a stride, so that sums do not
  // overflow.
  const std::int64_t width =
      stride > 0 ? std::min(stride, size + 1) : std::min(-std::max(stride, -size - 1), size + 1);
  std::vector<std::int64_t> positions;
  if (distance > 0) run.budget().take_product(distance / width + 1, 8);
  for (std::int64_t at = 0; at < distance; at += width)
    positions.push_back(stride > 0 ? from + at : from - at);
  return positions;
}

}  // namespace primus::jinja
