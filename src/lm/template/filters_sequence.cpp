// Jinja's filters of sequences and dicts.
#include <fmt/format.h>

#include <algorithm>

#include "lm/template/arguments.h"
#include "lm/template/filters.h"

namespace primus::jinja {
namespace {

Value filter_default(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "default", args, {"default_value", "boolean"});
  const bool replaced = value.is(Type::kUndefined) || (given.flag(1, false) && !is_true(value));
  return replaced ? given.get(0, run.text("")) : value;
}

Value filter_length(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "length", args, {});
  switch (value.type()) {
    case Type::kUndefined:
      return Value::integer(0);
    case Type::kString:
      return Value::integer(length_of(value));
    case Type::kList:
    case Type::kTuple:
      return Value::integer(static_cast<std::int64_t>(value.items().size()));
    case Type::kDict:
      return Value::integer(static_cast<std::int64_t>(value.as<MappingObject>().items.size()));
    case Type::kView:
      return Value::integer(
          static_cast<std::int64_t>(value.as<ViewObject>().mapping.as<MappingObject>().items.size()));
    case Type::kRange:
      return Value::integer(value.as<RangeObject>().size());
    case Type::kLoop:
      return run.attribute(value, "length");
    default:
      throw Failure("TypeError", fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

Value filter_list(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "list", args, {});
  return make_list(run.budget(), run.elements(value));
}

Value filter_first(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "first", args, {});
  if (value.is(Type::kIterator)) {
    auto& iterator = value.as<IteratorObject>();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
    return make_undefined("No first item, sequence was empty.");
  }
  const std::vector<Value> all = run.elements(value);
  return all.empty() ? make_undefined("No first item, sequence was empty.") : all.front();
}
Value filter_last(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "last", args, {});
  if (value.is(Type::kIterator)) throw Failure("TypeError", "'generator' object is not reversible");
  const std::vector<Value> all = run.elements(value);
  return all.empty() ? make_undefined("No last item, sequence was empty.") : all.back();
}

Value filter_join(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "join", args, {"d", "attribute"});
  const std::string separator = given.has(0) ? run.str(given[0]) : "";
  std::string joined;
  bool first = true;
  for (const Value& element : run.elements(value)) {
    if (!first) joined += separator;
    first = false;
    joined +=
        run.str(given.has(1) && !given[1].is(Type::kNone) ? attribute_path(run, element, given[1]) : element);
    run.budget().take_bytes(static_cast<std::int64_t>(separator.size()));
  }
  return run.text(std::move(joined));
}

Value filter_reverse(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "reverse", args, {});
  std::vector<Value> all = run.elements(value);
  std::ranges::reverse(all);
  if (!value.is(Type::kString)) return make_iterator(run.budget(), std::move(all));
  std::string text;
  for (const Value& character : all) text += character.text();
  return run.text(std::move(text));
}

Value filter_items(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "items", args, {});
  std::vector<Value> pairs;
  if (value.is(Type::kDict)) {
    for (const auto& [key, item] : value.as<MappingObject>().items)
      pairs.push_back(make_tuple(run.budget(), {key, item}));
  } else if (!value.is(Type::kUndefined)) {
    throw Failure("TypeError", "Can only get item pairs from a mapping.");
  }
  return make_iterator(run.budget(), std::move(pairs));
}

Value filter_batch(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "batch", args, {"linecount", "fill_with"}, 1);
  const std::int64_t count = given.integer(0, 1);
  std::vector<Value> batches, batch;
  for (Value& element : [&] { return run.elements(value); }()) {
    if (static_cast<std::int64_t>(batch.size()) == count) {
      batches.push_back(make_list(run.budget(), std::move(batch)));
      batch.clear();
    }
    batch.push_back(std::move(element));
  }
  if (!batch.empty()) {
    if (given.has(1) && !given[1].is(Type::kNone)) {
      const std::int64_t missing = count - static_cast<std::int64_t>(batch.size());
      run.budget().take_product(std::max<std::int64_t>(missing, 0), sizeof(Value));
      for (std::int64_t i = 0; i < missing; ++i) batch.push_back(given[1]);
    }
    batches.push_back(make_list(run.budget(), std::move(batch)));
  }
  return make_iterator(run.budget(), std::move(batches));
}

Value filter_slice(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "slice", args, {"slices", "fill_with"}, 1);
  const std::vector<Value> all = run.elements(value);
  const std::int64_t slices = given.integer(0, 1), size = static_cast<std::int64_t>(all.size());
  if (slices == 0) throw Failure("ZeroDivisionError", "integer division or modulo by zero");
  const std::int64_t base = slices < 0 ? 0 : size / slices, longer = slices < 0 ? 0 : size % slices;
  std::vector<Value> parts;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    run.budget().take_bytes(64);
    const std::int64_t end = at + base + (i < longer ? 1 : 0);
    std::vector<Value> part(all.begin() + at, all.begin() + end);
    if (given.has(1) && !given[1].is(Type::kNone) && i >= longer) part.push_back(given[1]);
    parts.push_back(make_list(run.budget(), std::move(part)));
    at = end;
  }
  return make_iterator(run.budget(), std::move(parts));
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {
      {"default", filter_default}, {"d", filter_default},   {"length", filter_length},
      {"count", filter_length},    {"list", filter_list},   {"first", filter_first},
      {"last", filter_last},       {"join", filter_join},   {"reverse", filter_reverse},
      {"items", filter_items},     {"batch", filter_batch}, {"slice", filter_slice},
  };
  return table;
}

bool is_filter(std::string_view name) {
  return text_filters().contains(name) || sequence_filters().contains(name) ||
         selection_filters().contains(name);
}

Value Interpreter::filter(const std::string& name, const Value& input, Args& args) {
  const Budget::Level level(budget_);
  budget_.take_steps();
  for (const FilterTable* const table : {&text_filters(), &sequence_filters(), &selection_filters()})
    if (const auto found = table->find(name); found != table->end()) return found->second(*this, input, args);
  throw Failure("TemplateRuntimeError", fmt::format("No filter named '{}' found.", name));
}

}  // namespace primus::jinja
