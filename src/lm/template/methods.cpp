// Methods of Python's str, list, tuple, dict and numbers, and of loops.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "lm/template/arguments.h"
#include "lm/template/interpreter.h"
#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

using Method = Value (*)(Interpreter& run, const Value& self, const std::string& name, Args& args);

Value list_of_texts(Interpreter& run, const std::vector<std::string_view>& parts) {
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(run.text(std::string(part)));
  return make_list(run.budget(), std::move(values));
}

Value strip_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"chars"});
  const bool left = name != "rstrip", right = name != "lstrip";
  run.budget().take_steps(static_cast<std::int64_t>(self.text().size()) / 16);
  if (!given.has(0) || given[0].is(Type::kNone))
    return run.text(std::string(strip(self.text(), left, right)));
  return run.text(std::string(strip(self.text(), given.text(0), left, right)));
}

Value split_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"sep", "maxsplit"});
  const std::int64_t limit = given.integer(1, -1);
  const bool from_right = name == "rsplit";
  run.budget().take_bytes(static_cast<std::int64_t>(self.text().size()));
  if (!given.has(0) || given[0].is(Type::kNone))
    return list_of_texts(run, split_words(self.text(), limit, from_right));
  const std::string separator = given.text(0);
  if (separator.empty()) throw Failure("ValueError", "empty separator");
  return list_of_texts(run, split_at(self.text(), separator, limit, from_right));
}

Value splitlines_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"keepends"});
  return list_of_texts(run, split_lines(self.text(), given.flag(0, false)));
}

Value partition_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"sep"}, 1);
  const std::string separator = given.text(0), &all = self.text();
  if (separator.empty()) throw Failure("ValueError", "empty separator");
  const bool last = name == "rpartition";
  const std::size_t at = last ? all.rfind(separator) : all.find(separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {run.text(last ? "" : all), run.text(""), run.text(last ? all : "")};
  } else {
    parts = {run.text(all.substr(0, at)), run.text(separator), run.text(all.substr(at + separator.size()))};
  }
  return make_tuple(run.budget(), std::move(parts));
}

// The part of the text that the arguments `start` and `end` of a method select.
struct Part {
  std::string_view text;
  std::int64_t begin = 0;  // index of the first character
  bool valid = true;       // false if start is beyond the end
};
Part selected(const Value& self, const Parameters& given) {
  const std::int64_t length = length_of(self);
  const auto position = [&](std::size_t index, std::int64_t otherwise) {
    if (!given.has(index) || given[index].is(Type::kNone)) return otherwise;
    const std::int64_t at = given.integer(index, 0);
    return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
  };
  const std::int64_t begin = position(1, 0), end = std::min(position(2, length), length);
  return {characters(self, begin, end), begin, begin <= end};
}

Value affix_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"prefix", "start", "end"}, 1);
  const Part part = selected(self, given);
  const auto matches = [&](const Value& affix) {
    if (affix.is(Type::kUndefined)) fail_undefined(affix);
    if (!affix.is(Type::kString)) {
      throw Failure("TypeError", fmt::format("{} first arg must be str or a tuple of str, not {}", name,
                                             type_name(affix)));
    }
    run.budget().take_steps();
    return part.valid &&
           (name == "startswith" ? part.text.starts_with(affix.text()) : part.text.ends_with(affix.text()));
  };
  if (given[0].is(Type::kTuple)) return Value::boolean(std::ranges::any_of(given[0].items(), matches));
  return Value::boolean(matches(given[0]));
}

Value find_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"sub", "start", "end"}, 1);
  const std::string wanted = given.text(0);
  const Part part = selected(self, given);
  run.budget().take_steps(static_cast<std::int64_t>(part.text.size()) / 16);
  const bool last = name.starts_with('r');
  const std::size_t at =
      !part.valid ? std::string_view::npos : (last ? part.text.rfind(wanted) : part.text.find(wanted));
  if (at == std::string_view::npos) {
    if (name.ends_with("index")) throw Failure("ValueError", "substring not found");
    return Value::integer(-1);
  }
  const auto before = std::ranges::count_if(
      part.text.substr(0, at), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return Value::integer(part.begin + before);
}

Value count_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"sub", "start", "end"}, 1);
  const std::string wanted = given.text(0);
  const Part part = selected(self, given);
  run.budget().take_steps(static_cast<std::int64_t>(part.text.size()) / 16);
  if (!part.valid) return Value::integer(0);
  if (wanted.empty()) {
    return Value::integer(1 + std::ranges::count_if(part.text, [](char c) {
                            return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                          }));
  }
  return Value::integer(static_cast<std::int64_t>(split_at(part.text, wanted, -1, false).size()) - 1);
}

Value replace_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"old", "new", "count"}, 2);
  const std::string old = given.text(0), fresh = given.text(1);
  const std::int64_t limit = given.integer(2, -1);
  Budget& budget = run.budget();
  std::string result;
  const auto append = [&](std::string_view text) {
    budget.take_bytes(static_cast<std::int64_t>(text.size()));
    result += text;
  };
  if (!old.empty()) {
    budget.take_bytes(static_cast<std::int64_t>(self.text().size()));
    const auto parts = split_at(self.text(), old, limit, false);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) append(fresh);
      append(parts[i]);
    }
    return run.text(std::move(result));
  }
  std::int64_t done = 0;
  each_character(self.text(), [&](char32_t, std::string_view character) {
    if (limit < 0 || done++ < limit) append(fresh);
    append(character);
  });
  if (limit < 0 || done < limit) append(fresh);
  return run.text(std::move(result));
}

Value case_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {});
  run.budget().take_steps(static_cast<std::int64_t>(self.text().size()) / 4);
  const std::string& all = self.text();
  if (name == "upper") return run.text(upper(all));
  if (name == "lower") return run.text(lower(all));
  if (name == "casefold") return run.text(casefold(all));
  if (name == "swapcase") return run.text(swapcase(all));
  return run.text(name == "title" ? title(all) : capitalize(all));
}

Value pad_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"width", "fillchar"}, 1);
  const std::string fill = name == "zfill" ? "0" : given.text(1, " ");
  const std::int64_t length = length_of(self), width = given.integer(0, 0),
                     missing = std::max<std::int64_t>(width - length, 0);
  run.budget().take_product(missing, static_cast<std::int64_t>(fill.size()));
  const auto filled = [&](std::int64_t count) {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) text += fill;
    return text;
  };
  const std::string& all = self.text();
  if (name == "zfill") {
    const std::size_t sign = all.starts_with('+') || all.starts_with('-') ? 1 : 0;
    return run.text(all.substr(0, sign) + filled(missing) + all.substr(sign));
  }
  if (name == "ljust") return run.text(all + filled(missing));
  if (name == "rjust") return run.text(filled(missing) + all);
  const std::int64_t left = missing / 2 + (missing & width & 1);
  return run.text(filled(left) + all + filled(missing - left));
}

Value join_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"iterable"}, 1);
  std::string joined;
  std::size_t index = 0;
  for (const Value& part : run.elements(given[0])) {
    if (!part.is(Type::kString)) {
      if (part.is(Type::kUndefined)) fail_undefined(part);
      throw Failure("TypeError",
                    fmt::format("sequence item {}: expected str instance, {} found", index, type_name(part)));
    }
    run.budget().take_bytes(static_cast<std::int64_t>(part.text().size() + self.text().size()));
    if (index++ > 0) joined += self.text();
    joined += part.text();
  }
  return run.text(std::move(joined));
}

Value remove_affix_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"affix"}, 1);
  const std::string affix = given.text(0), &all = self.text();
  if (name == "removeprefix") return run.text(all.starts_with(affix) ? all.substr(affix.size()) : all);
  return run.text(all.ends_with(affix) ? all.substr(0, all.size() - affix.size()) : all);
}

// Implements isdigit and similar methods: returns whether the text is not empty and all its characters have
// the property.
Value is_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {});
  run.budget().take_steps(static_cast<std::int64_t>(self.text().size()) / 4);
  bool all = true, cased = false, in_word = false, titled = true;
  each_character(self.text(), [&](char32_t c, std::string_view) {
    if (name == "isdigit" || name == "isdecimal") all &= is_decimal(c);
    if (name == "isnumeric") all &= is_numeric(c);
    if (name == "isalpha") all &= is_alphabetic(c);
    if (name == "isalnum") all &= is_alphabetic(c) || is_numeric(c);
    if (name == "isspace") all &= is_space(c);
    if (name == "isascii") all &= c < 0x80;
    if (name == "isprintable") all &= is_printable(c);
    if (name == "isidentifier") all &= is_word(c);
    if (name == "isupper") all &= !is_lower(c);
    if (name == "islower") all &= !is_upper(c);
    const bool is_cased = is_upper(c) || is_lower(c);
    titled &= is_cased ? is_lower(c) == in_word : true;
    in_word = is_cased;
    cased |= is_cased;
  });
  const bool empty = self.text().empty();
  if (name == "isascii" || name == "isprintable") return Value::boolean(all);
  if (name == "isupper" || name == "islower") return Value::boolean(all && cased);
  if (name == "istitle") return Value::boolean(titled && cased);
  if (name == "isidentifier") all &= !empty && !is_numeric(first_character(self.text()).code);
  return Value::boolean(all && !empty);
}

Value format_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  if (name == "format") return format_braces(run, self, args);
  const Parameters given(run, name, args, {"mapping"}, 1);
  Args named;
  if (!given[0].is(Type::kDict)) throw Failure("TypeError", "format_map() needs a mapping");
  for (const auto& [key, value] : given[0].as<MappingObject>().items)
    if (key.is(Type::kString)) named.named.emplace_back(key.text(), value);
  return format_braces(run, self, named);
}

Value expandtabs_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {"tabsize"});
  const std::int64_t size = std::max<std::int64_t>(given.integer(0, 8), 0);
  std::string result;
  std::int64_t column = 0;
  each_character(self.text(), [&](char32_t c, std::string_view bytes) {
    if (c == '\t') {
      const std::int64_t width = size == 0 ? 0 : size - column % size;
      run.budget().take_bytes(width);
      result.append(static_cast<std::size_t>(width), ' ');
      column += width;
    } else {
      result += bytes;
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  });
  return run.text(std::move(result));
}

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> methods = {
      {"strip", strip_method},
      {"lstrip", strip_method},
      {"rstrip", strip_method},
      {"split", split_method},
      {"rsplit", split_method},
      {"splitlines", splitlines_method},
      {"partition", partition_method},
      {"rpartition", partition_method},
      {"startswith", affix_method},
      {"endswith", affix_method},
      {"find", find_method},
      {"rfind", find_method},
      {"index", find_method},
      {"rindex", find_method},
      {"count", count_method},
      {"replace", replace_method},
      {"upper", case_method},
      {"lower", case_method},
      {"casefold", case_method},
      {"swapcase", case_method},
      {"title", case_method},
      {"capitalize", case_method},
      {"zfill", pad_method},
      {"ljust", pad_method},
      {"rjust", pad_method},
      {"center", pad_method},
      {"join", join_method},
      {"removeprefix", remove_affix_method},
      {"removesuffix", remove_affix_method},
      {"isdigit", is_method},
      {"isdecimal", is_method},
      {"isnumeric", is_method},
      {"isalpha", is_method},
      {"isalnum", is_method},
      {"isspace", is_method},
      {"isascii", is_method},
      {"isprintable", is_method},
      {"isidentifier", is_method},
      {"isupper", is_method},
      {"islower", is_method},
      {"istitle", is_method},
      {"format", format_method},
      {"format_map", format_method},
      {"expandtabs", expandtabs_method},
  };
  return methods;
}

Value sequence_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  if (name == "copy") return self;
  const Parameters given(run, name, args, {"value", "start", "stop"}, 1);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < self.items().size(); ++i) {
    if (!equal(run.budget(), self.items()[i], given[0])) continue;
    if (name == "index") return Value::integer(static_cast<std::int64_t>(i));
    ++count;
  }
  if (name == "index")
    throw Failure("ValueError",
                  fmt::format("{} is not in {}", repr_of(run.budget(), given[0]), type_name(self)));
  return Value::integer(count);
}

Value dict_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  if (name == "get") {
    const Parameters given(run, name, args, {"key", "default"}, 1);
    const Value* const found = find(run.budget(), self, given[0]);
    return found ? *found : given.get(1, Value::none());
  }
  if (name == "fromkeys") {
    const Parameters given(run, name, args, {"iterable", "value"}, 1);
    const auto made = make_mapping();
    for (const Value& key : run.elements(given[0]))
      put(run.budget(), *made, key, given.get(1, Value::none()));
    return dict_of(made);
  }
  const Parameters given(run, name, args, {});
  if (name == "copy") return self;
  run.budget().take_bytes(64);
  auto view = std::make_shared<ViewObject>();
  view->mapping = self;
  view->kind = name == "keys" ? ViewKind::kKeys : name == "values" ? ViewKind::kValues : ViewKind::kItems;
  run.budget().require_depth(depth_of(self) + 1);
  return {Type::kView, std::move(view)};
}

Value number_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  const Parameters given(run, name, args, {});
  if (name == "conjugate") return self;
  if (name == "is_integer") return Value::boolean(std::trunc(self.float_value()) == self.float_value());
  if (self.is(Type::kBigInt)) throw Failure("TypeError", name + "() of a large integer is not supported");
  const std::int64_t value = self.int_value();
  const std::uint64_t size =
      value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
  return Value::integer(name == "bit_count" ? std::popcount(size) : std::bit_width(size));
}

Value loop_method(Interpreter& run, const Value& self, const std::string& name, Args& args) {
  auto& loop = self.as<LoopObject>();
  if (name == "cycle") {
    if (args.positional.empty()) throw Failure("TypeError", "no items for cycling given");
    return args.positional[loop.index % args.positional.size()];
  }
  // This value may contain the loop itself. The end of the loop releases the value and the loop's elements.
  const Value now = make_tuple(run.budget(), args.positional);
  const bool changed = !loop.has_changed || !equal(run.budget(), loop.last_changed, now);
  loop.last_changed = now;
  loop.has_changed = true;
  return Value::boolean(changed);
}

}  // namespace

Value Interpreter::method(const Value& self, const std::string& name, Args& args) {
  switch (self.type()) {
    case Type::kString: {
      const auto found = text_methods().find(name);
      if (found == text_methods().end())
        throw Failure("TypeError", fmt::format("the method str.{} is not supported in templates", name));
      return found->second(*this, self, name, args);
    }
    case Type::kList:
    case Type::kTuple:
      return sequence_method(*this, self, name, args);
    case Type::kDict:
      return dict_method(*this, self, name, args);
    case Type::kLoop:
      return loop_method(*this, self, name, args);
    default:
      return number_method(*this, self, name, args);
  }
}

}  // namespace primus::jinja
