// Attribute access, subscription and calls, as Jinja's immutable sandbox allows them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"

namespace primus::jinja {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kTextMethods[] = {
    "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
    "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
    "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
    "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
    "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
    "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
    "swapcase",   "title",        "translate",    "upper",   "zfill"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kIntMethods[] = {"bit_count", "bit_length", "conjugate"};
constexpr std::string_view kFloatMethods[] = {"conjugate", "is_integer"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

bool in(Names names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

Names methods_of(const Value& value) {
  switch (value.type()) {
    case Type::kString:
      return kTextMethods;
    case Type::kList:
      return kListMethods;
    case Type::kTuple:
      return kTupleMethods;
    case Type::kDict:
      return kDictMethods;
    case Type::kBool:
    case Type::kInt:
    case Type::kBigInt:
      return kIntMethods;
    case Type::kFloat:
      return kFloatMethods;
    default:
      return {};
  }
}

// Returns whether the method exists in Python and would change its object.
bool changes(const Value& value, std::string_view name) {
  return (value.is(Type::kList) && in(kListChanges, name)) ||
         (value.is(Type::kDict) && in(kDictChanges, name));
}

// Returns whether every Python object has the attribute (such as __class__), or every container (__len__).
bool is_internal(const Value& value, std::string_view name) {
  static constexpr std::string_view kObject[] = {
      "__class__", "__delattr__",      "__dir__",    "__doc__",  "__eq__",           "__format__",
      "__ge__",    "__getattribute__", "__gt__",     "__hash__", "__init__",         "__init_subclass__",
      "__le__",    "__lt__",           "__ne__",     "__new__",  "__reduce__",       "__reduce_ex__",
      "__repr__",  "__setattr__",      "__sizeof__", "__str__",  "__subclasshook__", "__getstate__"};
  static constexpr std::string_view kContainer[] = {"__add__",  "__contains__", "__getitem__",
                                                    "__iter__", "__len__",      "__mul__"};
  const bool is_container = value.is(Type::kString) || value.is_sequence() || value.is(Type::kDict);
  const bool is_function = value.is(Type::kFunction) && (name == "__globals__" || name == "__code__");
  return in(kObject, name) || (is_container && in(kContainer, name)) || is_function;
}

// Returns the name of the object's type as in Jinja's message about an undefined attribute.
std::string described_type(const Value& value) {
  switch (value.type()) {
    case Type::kNone:
      return "None";
    case Type::kNamespace:
    case Type::kMacro:
      return fmt::format("jinja2.runtime.{} object", type_name(value));
    default:
      return fmt::format("{} object", type_name(value));
  }
}

Value no_attribute(const Value& object, std::string_view name) {
  return make_undefined(fmt::format("'{}' has no attribute '{}'", described_type(object), name));
}

Value bound_method(Interpreter& run, const Value& self, const std::string& name) {
  run.budget().take_bytes(64);
  auto method = std::make_shared<MethodObject>();
  method->self = self;
  method->name = name;
  Value value(Type::kMethod, std::move(method));
  run.budget().require_depth(depth_of(value));
  return value;
}

// Returns an attribute that Python's type defines; nullopt if the type does not define it.
std::optional<Value> type_attribute(Interpreter& run, const Value& object, const std::string& name) {
  if (is_internal(object, name) || changes(object, name)) {
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)),
        "SecurityError");
  }
  if (in(methods_of(object), name)) return bound_method(run, object, name);
  if (object.is_integral() && (name == "real" || name == "numerator")) return object;
  if (object.is_integral() && (name == "imag" || name == "denominator"))
    return Value::integer(name == "imag" ? 0 : 1);
  if (object.is(Type::kTuple) && object.as<SequenceObject>().group) {
    if (name == "grouper") return object.items()[0];
    if (name == "list") return object.items()[1];
  }
  if (object.is(Type::kMacro) && name == "name") return run.text(object.as<MacroObject>().syntax->name);
  return std::nullopt;
}

// Returns obj[key] for a key that is not a slice, or nullopt if Python raises TypeError or LookupError.
std::optional<Value> subscribed_item(Interpreter& run, const Value& object, const Value& key) {
  switch (object.type()) {
    case Type::kDict:
      if (key.is(Type::kList) || key.is(Type::kDict)) return std::nullopt;
      if (const Value* const found = find(run.budget(), object, key)) return *found;
      return std::nullopt;
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kRange:
      break;
    default:
      return std::nullopt;
  }
  if (!key.is_integral() || key.is(Type::kBigInt)) return std::nullopt;
  const std::int64_t size = object.is(Type::kString)  ? length_of(object)
                            : object.is(Type::kRange) ? object.as<RangeObject>().size()
                                                      : static_cast<std::int64_t>(object.items().size());
  std::int64_t index = key.int_value();
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  if (object.is(Type::kRange)) {
    const auto& range = object.as<RangeObject>();
    return Value::integer(range.start + index * range.step);
  }
  if (!object.is(Type::kString)) return object.items()[static_cast<std::size_t>(index)];
  run.budget().take_steps(static_cast<std::int64_t>(object.text().size()) / 16);
  return run.text(std::string(characters(object, index, index + 1)));
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is(Type::kUndefined)) fail_undefined(object);
  if (object.is(Type::kLoop)) return loop_attribute(object, name);
  if (object.is(Type::kNamespace)) {
    if (const Value* const found = object.as<NamespaceObject>().find(name)) return *found;
    if (!name.starts_with("__")) return no_attribute(object, name);
  }
  if (std::optional<Value> found = type_attribute(*this, object, name)) return *found;
  if (object.is(Type::kDict)) {
    if (const Value* const found = object.as<MappingObject>().find("s" + name)) return *found;
  }
  return no_attribute(object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is(Type::kUndefined)) fail_undefined(object);
  if (std::optional<Value> found = subscribed_item(*this, object, key)) return *found;
  if (key.is(Type::kString)) {
    const std::string& name = key.text();
    if (object.is(Type::kLoop) || object.is(Type::kNamespace)) return attribute(object, name);
    if (std::optional<Value> found = type_attribute(*this, object, name)) return *found;
    return no_attribute(object, name);
  }
  return make_undefined(fmt::format("{} has no element {}", described_type(object), repr_of(budget_, key)));
}

Value Interpreter::call(const Value& callee, Args& args) {
  const Budget::Level level(budget_);
  budget_.take_steps();
  switch (callee.type()) {
    case Type::kUndefined:
      fail_undefined(callee);
    case Type::kMacro:
      return call_macro(callee, args);
    case Type::kLoop:
      return call_loop(callee.as<LoopObject>(), args);
    case Type::kMethod:
      return method(callee.as<MethodObject>().self, callee.as<MethodObject>().name, args);
    case Type::kFunction:
      return callee.as<FunctionObject>().call(*this, args);
    default:
      throw Failure("TypeError", fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

std::vector<Value> Interpreter::elements(const Value& value) { return jinja::elements(budget_, value); }

}  // namespace primus::jinja
