#include "lm/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text/utf8.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

constexpr std::int64_t kObjectBytes = 64;  // approximate memory of an object without its elements

int depth_of_all(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return depth + 1;
}

Value make_sequence(Budget& budget, Type type, std::vector<Value> items) {
  budget.take_product(static_cast<std::int64_t>(items.size()), sizeof(Value));
  budget.take_bytes(kObjectBytes);
  auto object = std::make_shared<SequenceObject>();
  object->depth = depth_of_all(items);
  budget.require_depth(object->depth);
  object->items = std::move(items);
  return {type, std::move(object)};
}

}  // namespace

Value Value::integer(const BigInteger& value) {
  if (const auto small = value.to_int64()) return integer(*small);
  auto object = std::make_shared<BigObject>();
  object->value = value;
  return {Type::kBigInt, std::move(object)};
}

const std::string& Value::text() const { return as<TextObject>().text; }
const std::vector<Value>& Value::items() const { return as<SequenceObject>().items; }
BigInteger Value::big() const { return type_ == Type::kBigInt ? as<BigObject>().value : BigInteger(int_); }
double Value::number() const {
  if (type_ == Type::kFloat) return float_;
  return type_ == Type::kBigInt ? as<BigObject>().value.to_double() : static_cast<double>(int_);
}

const Value* MappingObject::find(const std::string& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &items[found->second].second;
}
void MappingObject::set(const std::string& key, Value name, Value value) {
  const auto [found, is_new] = index.try_emplace(key, items.size());
  if (is_new)
    items.emplace_back(std::move(name), std::move(value));
  else
    items[found->second].second = std::move(value);
}

std::int64_t RangeObject::size() const {
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const auto distance = step > 0 ? static_cast<std::uint64_t>(stop) - static_cast<std::uint64_t>(start)
                                 : static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(stop);
  const std::uint64_t stride =
      step > 0 ? static_cast<std::uint64_t>(step) : ~static_cast<std::uint64_t>(step) + 1;
  const std::uint64_t count = (distance - 1) / stride + 1;
  return static_cast<std::int64_t>(std::min(count, std::uint64_t{std::numeric_limits<std::int64_t>::max()}));
}

Value* NamespaceObject::find(std::string_view name) {
  const auto found =
      std::ranges::find(items, name, [](const auto& item) { return std::string_view(item.first); });
  return found == items.end() ? nullptr : &found->second;
}

Value make_text(Budget& budget, std::string text) {
  budget.take_bytes(static_cast<std::int64_t>(text.size()) + kObjectBytes);
  auto object = std::make_shared<TextObject>();
  object->text = std::move(text);
  return {Type::kString, std::move(object)};
}
Value make_list(Budget& budget, std::vector<Value> items) {
  return make_sequence(budget, Type::kList, std::move(items));
}
Value make_tuple(Budget& budget, std::vector<Value> items) {
  return make_sequence(budget, Type::kTuple, std::move(items));
}
Value make_iterator(Budget& budget, std::vector<Value> items) {
  budget.take_product(static_cast<std::int64_t>(items.size()), sizeof(Value));
  auto object = std::make_shared<IteratorObject>();
  object->depth = depth_of_all(items);
  budget.require_depth(object->depth);
  object->items = std::move(items);
  return {Type::kIterator, std::move(object)};
}
Value make_undefined(std::string message, const char* error) {
  auto object = std::make_shared<UndefinedObject>();
  object->message = std::move(message);
  object->error = error;
  return {Type::kUndefined, std::move(object)};
}
Value undefined_name(std::string_view name) { return make_undefined(fmt::format("'{}' is undefined", name)); }
Value make_function(std::string name, std::function<Value(Interpreter&, Args&)> call) {
  auto object = std::make_shared<FunctionObject>();
  object->name = std::move(name);
  object->call = std::move(call);
  return {Type::kFunction, std::move(object)};
}
std::shared_ptr<MappingObject> make_mapping() {
  auto mapping = std::make_shared<MappingObject>();
  mapping->depth = 1;
  return mapping;
}
void put(Budget& budget, MappingObject& mapping, const Value& key, Value value) {
  const std::string stored = key_of(budget, key);
  budget.take_bytes(static_cast<std::int64_t>(stored.size() + 2 * sizeof(Value)) + kObjectBytes);
  mapping.depth = std::max({mapping.depth, depth_of(key) + 1, depth_of(value) + 1});
  budget.require_depth(mapping.depth);
  mapping.set(stored, key, std::move(value));
}
Value dict_of(const std::shared_ptr<MappingObject>& mapping) { return {Type::kDict, mapping}; }

std::string_view type_name(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
    case Type::kBigInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kDict:
      return "dict";
    case Type::kView: {
      const ViewKind kind = value.as<ViewObject>().kind;
      return kind == ViewKind::kKeys ? "dict_keys" : kind == ViewKind::kValues ? "dict_values" : "dict_items";
    }
    case Type::kRange:
      return "range";
    case Type::kIterator:
      return "generator";
    case Type::kNamespace:
      return value.as<NamespaceObject>().type_name;
    case Type::kLoop:
      return "LoopContext";
    case Type::kMacro:
      return "Macro";
    case Type::kMethod:
      return "builtin_function_or_method";
    case Type::kFunction:
      return "function";
  }
  return "object";
}

int depth_of(const Value& value) {
  switch (value.type()) {
    case Type::kList:
    case Type::kTuple:
      return value.as<SequenceObject>().depth;
    case Type::kDict:
      return value.as<MappingObject>().depth;
    case Type::kIterator:
      return value.as<IteratorObject>().depth;
    case Type::kView:
      return depth_of(value.as<ViewObject>().mapping) + 1;
    case Type::kMethod:
      return depth_of(value.as<MethodObject>().self) + 1;
    default:
      return 0;
  }
}

bool is_true(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return value.int_value() != 0;
    case Type::kFloat:
      return value.float_value() != 0;
    case Type::kString:
      return !value.text().empty();
    case Type::kList:
    case Type::kTuple:
      return !value.items().empty();
    case Type::kDict:
      return !value.as<MappingObject>().items.empty();
    case Type::kView:
      return is_true(value.as<ViewObject>().mapping);
    case Type::kRange:
      return value.as<RangeObject>().size() > 0;
    default:
      return true;
  }
}

void fail_undefined(const Value& value) {
  if (!value.object()) throw Failure("UndefinedError", "the value is undefined");
  const auto& undefined = value.as<UndefinedObject>();
  throw Failure(undefined.error, undefined.message);
}

std::string key_of(Budget& budget, const Value& value) {
  switch (value.type()) {
    case Type::kString:
      budget.take_steps(static_cast<std::int64_t>(value.text().size()) / 16 + 1);
      return "s" + value.text();
    case Type::kBool:
    case Type::kInt:
      return "n" + std::to_string(value.int_value());
    case Type::kBigInt:
      return "n" + value.as<BigObject>().value.str();
    case Type::kFloat: {
      const double number = value.float_value();
      if (std::isfinite(number) && std::trunc(number) == number)
        return "n" + BigInteger::truncated(number).str();
      return "f" + repr_of_float(number);
    }
    case Type::kNone:
      return "none";
    case Type::kUndefined:
      return "undefined";
    case Type::kTuple: {
      std::string key = "(";
      for (const Value& item : value.items()) {
        const std::string part = key_of(budget, item);
        budget.take_bytes(static_cast<std::int64_t>(part.size()) + 8);
        key += std::to_string(part.size()) + ":" + part;
      }
      return key + ")";
    }
    case Type::kList:
    case Type::kDict:
    case Type::kView:
      throw Failure("TypeError", fmt::format("unhashable type: '{}'", type_name(value)));
    default:
      return fmt::format("@{}", static_cast<const void*>(value.object().get()));
  }
}

const Value* find(Budget& budget, const Value& mapping, const Value& key) {
  return mapping.as<MappingObject>().find(key_of(budget, key));
}

std::int64_t length_of(const Value& text) {
  const auto& object = text.as<TextObject>();
  std::int64_t count = object.characters.load(std::memory_order_relaxed);
  if (count < 0) {
    count = std::ranges::count_if(object.text,
                                  [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    object.characters.store(count, std::memory_order_relaxed);
  }
  return count;
}

std::string_view characters(const Value& text, std::int64_t begin, std::int64_t end) {
  const std::string_view all = text.text();
  const std::int64_t length = length_of(text);
  begin = std::clamp<std::int64_t>(begin, 0, length);
  end = std::clamp(end, begin, length);
  if (length == static_cast<std::int64_t>(all.size()))
    return all.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  std::size_t first = all.size(), last = all.size();
  std::int64_t count = 0;
  for (std::size_t i = 0; i < all.size() && count <= end; ++i) {
    if ((static_cast<unsigned char>(all[i]) & 0xC0) == 0x80) continue;
    if (count == begin) first = i;
    if (count == end) last = i;
    ++count;
  }
  return all.substr(first, last - first);
}

bool is_iterable(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kView:
    case Type::kRange:
    case Type::kIterator:
    case Type::kLoop:
      return true;
    default:
      return false;
  }
}

std::vector<Value> elements(Budget& budget, const Value& value) {
  std::vector<Value> result;
  const auto reserve = [&](std::int64_t count) {
    budget.take_product(count, sizeof(Value));
    result.reserve(static_cast<std::size_t>(count));
  };
  switch (value.type()) {
    case Type::kUndefined:
      break;
    case Type::kList:
    case Type::kTuple:
      reserve(static_cast<std::int64_t>(value.items().size()));
      return value.items();
    case Type::kString:
      reserve(length_of(value));
      each_character(value.text(), [&](char32_t, std::string_view character) {
        result.push_back(make_text(budget, std::string(character)));
      });
      break;
    case Type::kDict:
      reserve(static_cast<std::int64_t>(value.as<MappingObject>().items.size()));
      for (const auto& item : value.as<MappingObject>().items) result.push_back(item.first);
      break;
    case Type::kView: {
      const auto& view = value.as<ViewObject>();
      const auto& items = view.mapping.as<MappingObject>().items;
      reserve(static_cast<std::int64_t>(items.size()));
      for (const auto& [key, item] : items) {
        if (view.kind == ViewKind::kItems)
          result.push_back(make_tuple(budget, {key, item}));
        else
          result.push_back(view.kind == ViewKind::kKeys ? key : item);
      }
      break;
    }
    case Type::kRange: {
      const auto& range = value.as<RangeObject>();
      reserve(range.size());
      for (std::int64_t i = 0; i < range.size(); ++i)
        result.push_back(Value::integer(range.start + i * range.step));
      break;
    }
    case Type::kIterator: {
      auto& iterator = value.as<IteratorObject>();
      result.assign(iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.next),
                    iterator.items.end());
      reserve(static_cast<std::int64_t>(result.size()));
      iterator.next = iterator.items.size();
      break;
    }
    default:
      throw Failure("TypeError", fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return result;
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.take_steps();
  if (a.is_number() && b.is_number()) {
    if (a.is(Type::kFloat) || b.is(Type::kFloat)) return a.number() == b.number();
    if (!a.is(Type::kBigInt) && !b.is(Type::kBigInt)) return a.int_value() == b.int_value();
    return a.big() == b.big();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      budget.take_steps(static_cast<std::int64_t>(std::min(a.text().size(), b.text().size())) / 16);
      return a.text() == b.text();
    case Type::kList:
    case Type::kTuple:
      return std::ranges::equal(a.items(), b.items(),
                                [&](const Value& x, const Value& y) { return equal(budget, x, y); });
    case Type::kDict: {
      const auto& left = a.as<MappingObject>();
      const auto& right = b.as<MappingObject>();
      if (left.items.size() != right.items.size()) return false;
      return std::ranges::all_of(left.items, [&](const auto& item) {
        const Value* const other = right.find(key_of(budget, item.first));
        return other && equal(budget, item.second, *other);
      });
    }
    case Type::kRange: {
      const auto& left = a.as<RangeObject>();
      const auto& right = b.as<RangeObject>();
      return left.size() == right.size() &&
             (left.size() == 0 ||
              (left.start == right.start && (left.size() == 1 || left.step == right.step)));
    }
    case Type::kView:
      return equal(budget, a.as<ViewObject>().mapping, b.as<ViewObject>().mapping);
    default:
      return a.object() == b.object();
  }
}

bool less(Budget& budget, const Value& a, const Value& b, std::string_view sign) {
  budget.take_steps();
  if (a.is_number() && b.is_number()) {
    if (a.is(Type::kFloat) || b.is(Type::kFloat)) return a.number() < b.number();
    if (!a.is(Type::kBigInt) && !b.is(Type::kBigInt)) return a.int_value() < b.int_value();
    return a.big() < b.big();
  }
  if (a.is(Type::kUndefined)) fail_undefined(a);
  if (b.is(Type::kUndefined)) fail_undefined(b);
  if (a.type() == b.type() && a.is(Type::kString)) return a.text() < b.text();
  if (a.type() == b.type() && a.is_sequence()) {
    const auto& left = a.items();
    const auto& right = b.items();
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i)
      if (!equal(budget, left[i], right[i])) return less(budget, left[i], right[i], sign);
    return left.size() < right.size();
  }
  throw Failure("TypeError", fmt::format("'{}' not supported between instances of '{}' and '{}'", sign,
                                         type_name(a), type_name(b)));
}

}  // namespace primus::jinja
