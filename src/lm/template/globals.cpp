// The functions that every template can call.
#include <fmt/format.h>

#include <limits>
#include <map>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"

namespace primus::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100000;  // the limit of Jinja's sandbox

Value make_range(Interpreter& run, Args& args) {
  const Parameters given(run, "range", args, {"start", "stop", "step"}, 1);
  auto range = std::make_shared<RangeObject>();
  range->start = given.has(1) ? given.integer(0, 0) : 0;
  range->stop = given.integer(given.has(1) ? 1 : 0, 0);
  range->step = given.integer(2, 1);
  if (range->step == 0) throw Failure("ValueError", "range() arg 3 must not be zero");
  if (range->size() > kMaxRange) {
    throw Failure(
        "OverflowError",
        fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange));
  }
  return {Type::kRange, std::move(range)};
}

// Implements dict(mapping or pairs, **named).
Value make_dict(Interpreter& run, Args& args) {
  Budget& budget = run.budget();
  if (args.positional.size() > 1) throw Failure("TypeError", "dict expected at most 1 argument");
  const auto made = make_mapping();
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Type::kDict)) {
      for (const auto& [key, value] : from.as<MappingObject>().items) put(budget, *made, key, value);
    } else {
      for (const Value& pair : run.elements(from)) {
        const std::vector<Value> parts = run.elements(pair);
        if (parts.size() != 2)
          throw Failure("ValueError", "dictionary update sequence element has a length other than 2");
        put(budget, *made, parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : args.named) put(budget, *made, run.text(name), value);
  return dict_of(made);
}

Value make_namespace(Interpreter& run, Args& args) {
  const Value attributes = make_dict(run, args);
  auto made = std::make_shared<NamespaceObject>();
  for (const auto& [key, value] : attributes.as<MappingObject>().items) {
    if (!key.is(Type::kString)) continue;
    if (key.text().starts_with('_')) {
      throw Failure(
          "SecurityError",
          fmt::format("Chat templates cannot store underscore-prefixed attributes on a namespace, but "
                      "got {}. Please rename the attribute.",
                      repr_of_text(key.text())));
    }
    made->items.emplace_back(key.text(), value);
  }
  return run.keep(std::move(made));
}

Value make_joiner(Interpreter& run, Args& args) {
  const Parameters given(run, "joiner", args, {"sep"});
  const std::string separator = given.has(0) ? run.str(given[0]) : ", ";
  return make_function("joiner", [separator, used = false](Interpreter& again, Args&) mutable {
    return std::exchange(used, true) ? again.text(separator) : again.text("");
  });
}

Value make_cycler(Interpreter& run, Args& args) {
  if (args.positional.empty()) throw Failure("RuntimeError", "at least one item has to be provided");
  auto made = std::make_shared<NamespaceObject>();
  made->type_name = "Cycler";
  NamespaceObject* const cycler = made.get();  // valid until the end of the rendering
  const Value items = make_tuple(run.budget(), args.positional);
  const auto position = std::make_shared<std::size_t>(0);
  made->items.emplace_back("items", items);
  made->items.emplace_back("current", items.items()[0]);
  const auto move = [cycler, position](bool reset) {
    const std::vector<Value>& all = cycler->find("items")->items();
    Value before = all[*position];
    *position = reset ? 0 : (*position + 1) % all.size();
    *cycler->find("current") = all[*position];
    return before;
  };
  made->items.emplace_back("next",
                           make_function("next", [move](Interpreter&, Args&) { return move(false); }));
  made->items.emplace_back("reset", make_function("reset", [move](Interpreter&, Args&) {
                             move(true);
                             return Value::none();
                           }));
  return run.keep(std::move(made));
}

Value raise_exception(Interpreter& run, Args& args) {
  const Parameters given(run, "raise_exception", args, {"message"}, 1);
  throw Failure("TemplateError", run.str(given[0]));
}

Value strftime_now(Interpreter& run, Args& args) {
  const Parameters given(run, "strftime_now", args, {"format"}, 1);
  const std::string format = given.text(0) + "x";  // so that an empty result differs from an overflow
  std::string buffer(format.size() * 32 + 4096, '\0');
  run.budget().take_bytes(static_cast<std::int64_t>(buffer.size()));
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &run.now());
  if (size == 0) throw Failure("ValueError", "the result of strftime_now is too long");
  buffer.resize(size - 1);
  return run.text(std::move(buffer));
}

Value refuse_lipsum(Interpreter&, Args&) {
  throw Failure("TypeError", "lipsum makes random text, which Primus does not support in templates");
}

}  // namespace

const Value* global(std::string_view name) {
  static const std::map<std::string_view, Value> globals = {
      {"range", make_function("range", make_range)},
      {"dict", make_function("dict", make_dict)},
      {"namespace", make_function("namespace", make_namespace)},
      {"joiner", make_function("joiner", make_joiner)},
      {"cycler", make_function("cycler", make_cycler)},
      {"raise_exception", make_function("raise_exception", raise_exception)},
      {"strftime_now", make_function("strftime_now", strftime_now)},
      {"lipsum", make_function("lipsum", refuse_lipsum)},
  };
  const auto found = globals.find(name);
  return found == globals.end() ? nullptr : &found->second;
}

}  // namespace primus::jinja
