// Jinja's filters that select, map, order or group elements.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lm/template/arguments.h"
#include "lm/template/filters.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

// Returns the key by which an element is ordered: the element or its attribute; texts in lower case unless
// `case_sensitive`.
Value order_key(Interpreter& run, const Value& element, const Value* path, bool case_sensitive) {
  Value key = path != nullptr && !path->is(Type::kNone) ? attribute_path(run, element, *path) : element;
  if (!case_sensitive && key.is(Type::kString)) key = run.text(lower(key.text()));
  return key;
}

// Returns the key of an element; for several attributes, such as "a,b", a tuple of their keys.
Value order_keys(Interpreter& run, const Value& element, const Value* paths, bool case_sensitive) {
  if (paths == nullptr || !paths->is(Type::kString) || paths->text().find(',') == std::string::npos)
    return order_key(run, element, paths, case_sensitive);
  std::vector<Value> keys;
  for (const std::string_view path : split_at(paths->text(), ",", -1, false)) {
    const Value name = run.text(std::string(path));
    keys.push_back(order_key(run, element, &name, case_sensitive));
  }
  return make_tuple(run.budget(), std::move(keys));
}

struct Keyed {
  Value key, element;
};
std::vector<Value> sorted(Interpreter& run, std::vector<Keyed> keyed, bool reverse) {
  // Reversing before and after keeps the order of equal elements, as Python does.
  if (reverse) std::ranges::reverse(keyed);
  std::ranges::stable_sort(
      keyed, [&](const Keyed& a, const Keyed& b) { return less(run.budget(), a.key, b.key, "<"); });
  if (reverse) std::ranges::reverse(keyed);
  std::vector<Value> elements;
  for (Keyed& item : keyed) elements.push_back(std::move(item.element));
  return elements;
}

Value filter_sort(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> keyed;
  for (const Value& element : run.elements(value))
    keyed.push_back(
        {order_keys(run, element, given.has(2) ? &given[2] : nullptr, given.flag(1, false)), element});
  return make_list(run.budget(), sorted(run, std::move(keyed), given.flag(0, false)));
}

Value filter_dictsort(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = given.text(1, "key");
  if (by != "key" && by != "value")
    throw Failure("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (!value.is(Type::kDict))
    throw Failure("AttributeError", fmt::format("'{}' object has no attribute 'items'", type_name(value)));
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.as<MappingObject>().items) {
    keyed.push_back({order_key(run, by == "key" ? key : item, nullptr, given.flag(0, false)),
                     make_tuple(run.budget(), {key, item})});
  }
  return make_list(run.budget(), sorted(run, std::move(keyed), given.flag(2, false)));
}

Value filter_groupby(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = given.flag(2, false);
  std::vector<Keyed> keyed;
  for (const Value& element : run.elements(value)) {
    Value key = attribute_path(run, element, given[0]);
    if (key.is(Type::kUndefined) && given.has(1)) key = given[1];
    if (!case_sensitive && key.is(Type::kString)) key = run.text(lower(key.text()));
    keyed.push_back({key, element});
  }
  std::ranges::stable_sort(
      keyed, [&](const Keyed& a, const Keyed& b) { return less(run.budget(), a.key, b.key, "<"); });
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::size_t end = begin;
    std::vector<Value> members;
    while (end < keyed.size() && equal(run.budget(), keyed[begin].key, keyed[end].key))
      members.push_back(keyed[end++].element);
    Value grouper = attribute_path(run, members.front(), given[0]);
    if (grouper.is(Type::kUndefined) && given.has(1)) grouper = given[1];
    Value group = make_tuple(run.budget(), {grouper, make_list(run.budget(), std::move(members))});
    group.as<SequenceObject>().group = true;
    groups.push_back(std::move(group));
    begin = end;
  }
  return make_list(run.budget(), std::move(groups));
}

Value extreme(Interpreter& run, const Value& value, Args& args, bool largest) {
  const Parameters given(run, largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const std::vector<Value> all = run.elements(value);
  if (all.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& element) {
    return order_key(run, element, given.has(1) ? &given[1] : nullptr, given.flag(0, false));
  };
  const Value* best = &all.front();
  Value best_key = key(*best);
  for (const Value& element : all) {
    const Value other = key(element);
    if (largest ? less(run.budget(), best_key, other, ">") : less(run.budget(), other, best_key, "<")) {
      best = &element;
      best_key = other;
    }
  }
  return *best;
}
Value filter_max(Interpreter& run, const Value& value, Args& args) { return extreme(run, value, args, true); }
Value filter_min(Interpreter& run, const Value& value, Args& args) {
  return extreme(run, value, args, false);
}

Value filter_sum(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "sum", args, {"attribute", "start"});
  Value sum = given.get(1, Value::integer(0));
  if (sum.is(Type::kString)) throw Failure("TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& element : run.elements(value)) {
    const bool by_attribute = given.has(0) && !given[0].is(Type::kNone);
    sum = binary(run, "+", sum, by_attribute ? attribute_path(run, element, given[0]) : element);
  }
  return sum;
}

Value filter_unique(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "unique", args, {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  std::vector<Value> unique;
  for (const Value& element : run.elements(value)) {
    std::string key = key_of(
        run.budget(), order_key(run, element, given.has(1) ? &given[1] : nullptr, given.flag(0, false)));
    run.budget().take_bytes(static_cast<std::int64_t>(key.size()) + 64);
    if (seen.insert(std::move(key)).second) unique.push_back(element);
  }
  return make_iterator(run.budget(), std::move(unique));
}

// Removes and returns the first positional argument.
Value take_first(Args& args, const char* missing) {
  if (args.positional.empty()) throw Failure("FilterArgumentError", missing);
  Value first = args.positional.front();
  args.positional.erase(args.positional.begin());
  return first;
}

Value filter_map(Interpreter& run, const Value& value, Args& args) {
  std::vector<Value> mapped;
  if (args.positional.empty() && !args.named.empty()) {
    const Parameters given(run, "map", args, {"attribute", "default"}, 1);
    for (const Value& element : run.elements(value)) {
      Value attribute = attribute_path(run, element, given[0]);
      if (attribute.is(Type::kUndefined) && given.has(1)) attribute = given[1];
      mapped.push_back(std::move(attribute));
    }
  } else {
    const Value name = take_first(args, "map requires a filter argument");
    if (!name.is(Type::kString)) throw Failure("TypeError", "the filter of map must be a string");
    for (const Value& element : run.elements(value)) {
      Args same = args;
      mapped.push_back(run.filter(name.text(), element, same));
    }
  }
  return make_iterator(run.budget(), std::move(mapped));
}

// Implements select, reject, selectattr and rejectattr.
Value chosen(Interpreter& run, const Value& value, Args& args, bool by_attribute, bool wanted) {
  Value path;
  if (by_attribute) path = take_first(args, "Missing parameter for attribute name");
  const bool has_test = !args.positional.empty();
  const Value name = has_test ? take_first(args, "") : Value();
  if (has_test && !name.is(Type::kString)) throw Failure("TypeError", "the test must be a string");
  std::vector<Value> selected;
  for (const Value& element : run.elements(value)) {
    const Value tested = by_attribute ? attribute_path(run, element, path) : element;
    Args same = args;
    if ((has_test ? run.test(name.text(), tested, same) : is_true(tested)) == wanted)
      selected.push_back(element);
  }
  return make_iterator(run.budget(), std::move(selected));
}
Value filter_select(Interpreter& run, const Value& value, Args& args) {
  return chosen(run, value, args, false, true);
}
Value filter_reject(Interpreter& run, const Value& value, Args& args) {
  return chosen(run, value, args, false, false);
}
Value filter_selectattr(Interpreter& run, const Value& value, Args& args) {
  return chosen(run, value, args, true, true);
}
Value filter_rejectattr(Interpreter& run, const Value& value, Args& args) {
  return chosen(run, value, args, true, false);
}

Value filter_attr(Interpreter& run, const Value& value, Args& args) {
  const Parameters given(run, "attr", args, {"name"}, 1);
  // The filter finds only attributes of the type, not the members of a dict.
  if (value.is(Type::kDict) && find(run.budget(), value, given[0]) != nullptr &&
      !run.attribute(value, given.text(0)).is(Type::kMethod))
    return make_undefined(fmt::format("'dict object' has no attribute '{}'", given.text(0)));
  return run.attribute(value, given.text(0));
}

}  // namespace

Value attribute_path(Interpreter& run, const Value& element, const Value& path) {
  if (!path.is(Type::kString)) return run.item(element, path);
  Value value = element;
  for (const std::string_view part : split_at(path.text(), ".", -1, false)) {
    const bool is_index = !part.empty() && part.size() < 18 &&
                          std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    value = run.item(value,
                     is_index ? Value::integer(std::stoll(std::string(part))) : run.text(std::string(part)));
  }
  return value;
}

const FilterTable& selection_filters() {
  static const FilterTable table = {
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"groupby", filter_groupby},
      {"max", filter_max},
      {"min", filter_min},
      {"sum", filter_sum},
      {"unique", filter_unique},
      {"map", filter_map},
      {"select", filter_select},
      {"reject", filter_reject},
      {"selectattr", filter_selectattr},
      {"rejectattr", filter_rejectattr},
      {"attr", filter_attr},
  };
  return table;
}

}  // namespace primus::jinja
