// Values of chat templates: JSON's kinds and kinds that a Jinja program makes (tuples, ranges, iterators,
// namespaces, functions), with Python's rules for truth, equality, order and printing.
//
// Values other than namespaces, iterators and loops are immutable, so a container never contains itself, and
// its nesting is limited (Budget::require_depth). A Value must not be used by two threads at once.
// Errors: Failure with the name and the message of Python's exception.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lm/template/big_integer.h"
#include "lm/template/budget.h"

namespace primus::jinja {

class Interpreter;
struct Args;
struct Object {
  virtual ~Object() = default;
};

enum class Type : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // only values that do not fit in kInt
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // keys, values or items of a dict
  kRange,
  kIterator,  // a Python iterator or generator: can be read once
  kNamespace,
  kLoop,
  kMacro,
  kMethod,
  kFunction,
};

class Value {
 public:
  Value() = default;  // undefined, without a name
  Value(Type type, std::shared_ptr<Object> object) : type_(type), object_(std::move(object)) {}
  static Value none() { return Value(Type::kNone, nullptr); }
  static Value boolean(bool value) {
    Value made(Type::kBool, nullptr);
    made.int_ = value ? 1 : 0;
    return made;
  }
  static Value integer(std::int64_t value) {
    Value made(Type::kInt, nullptr);
    made.int_ = value;
    return made;
  }
  static Value integer(const BigInteger& value);
  static Value real(double value) {
    Value made(Type::kFloat, nullptr);
    made.float_ = value;
    return made;
  }

  Type type() const { return type_; }
  bool is(Type type) const { return type_ == type; }
  bool is_integral() const { return type_ <= Type::kBigInt && type_ >= Type::kBool; }
  bool is_number() const { return is_integral() || type_ == Type::kFloat; }
  bool is_sequence() const { return type_ == Type::kList || type_ == Type::kTuple; }

  std::int64_t int_value() const { return int_; }  // kBool and kInt
  double float_value() const { return float_; }    // kFloat
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& object() const { return object_; }
  const std::string& text() const;          // kString
  const std::vector<Value>& items() const;  // kList, kTuple
  BigInteger big() const;                   // an integral value
  double number() const;                    // any number, as a double

 private:
  Type type_ = Type::kUndefined;
  union {
    std::int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct BigObject : Object {
  BigInteger value;
};
struct UndefinedObject : Object {
  std::string message;  // message of the error that a use of the value raises
  const char* error = "UndefinedError";
};
struct TextObject : Object {
  std::string text;  // valid UTF-8
  // Number of characters; -1: not counted yet. Atomic, because renderings on several threads share the
  // constants of a template.
  mutable std::atomic<std::int64_t> characters{-1};
};
struct SequenceObject : Object {
  std::vector<Value> items;
  int depth = 0;
  bool group = false;  // a tuple made by the filter groupby, with the attributes grouper and list
};
struct MappingObject : Object {
  const Value* find(const std::string& key) const;  // `key`: a result of key_of()
  void set(const std::string& key, Value name, Value value);

  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  std::unordered_map<std::string, std::size_t> index;
  int depth = 0;
};
enum class ViewKind : std::uint8_t { kKeys, kValues, kItems };
struct ViewObject : Object {
  Value mapping;
  ViewKind kind = ViewKind::kKeys;
};
struct RangeObject : Object {
  std::int64_t size() const;
  std::int64_t start = 0, stop = 0, step = 1;
};
struct IteratorObject : Object {
  std::vector<Value> items;
  std::size_t next = 0;
  int depth = 0;
};
struct NamespaceObject : Object {
  Value* find(std::string_view name);
  std::vector<std::pair<std::string, Value>> items;
  const char* type_name = "Namespace";
};
struct MethodObject : Object {
  Value self;
  std::string name;
};
struct FunctionObject : Object {
  std::string name;
  std::function<Value(Interpreter&, Args&)> call;
};

// Arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Make values. Functions with a budget charge the budget for the memory of the value.
Value make_text(Budget& budget, std::string text);
Value make_list(Budget& budget, std::vector<Value> items);
Value make_tuple(Budget& budget, std::vector<Value> items);
Value make_iterator(Budget& budget, std::vector<Value> items);
Value make_undefined(std::string message, const char* error = "UndefinedError");
Value undefined_name(std::string_view name);
Value make_function(std::string name, std::function<Value(Interpreter&, Args&)> call);
// Returns an empty dict. put() may add members as long as no Value refers to the dict.
std::shared_ptr<MappingObject> make_mapping();
void put(Budget& budget, MappingObject& mapping, const Value& key, Value value);
Value dict_of(const std::shared_ptr<MappingObject>& mapping);

// Returns Python's name of the value's type: "str", "NoneType", ...
std::string_view type_name(const Value& value);
int depth_of(const Value& value);
bool is_true(const Value& value);
// Throws the error of an undefined value.
[[noreturn]] void fail_undefined(const Value& value);
// Returns the key under which a dict stores the value. Equal values have equal keys. Throws
// Failure("TypeError") if the value is unhashable.
std::string key_of(Budget& budget, const Value& value);
const Value* find(Budget& budget, const Value& mapping, const Value& key);

// Returns the number of characters of a text.
std::int64_t length_of(const Value& text);
// Returns characters [begin, end) of a text, as a view into the text.
std::string_view characters(const Value& text, std::int64_t begin, std::int64_t end);

// Returns all elements, as Python's iteration yields them; reads an iterator to its end. Throws
// Failure("TypeError") if the value is not iterable.
std::vector<Value> elements(Budget& budget, const Value& value);
bool is_iterable(const Value& value);

bool equal(Budget& budget, const Value& a, const Value& b);
// Returns a < b. Throws Failure("TypeError"), which names `sign`, if the types have no order.
bool less(Budget& budget, const Value& a, const Value& b, std::string_view sign);

// Return str(value) and repr(value).
std::string str_of(Budget& budget, const Value& value);
std::string repr_of(Budget& budget, const Value& value);
std::string repr_of_text(std::string_view text);
std::string repr_of_float(double value);

}  // namespace primus::jinja
