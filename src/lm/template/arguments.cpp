#include "lm/template/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace primus::jinja {

Parameters::Parameters(Interpreter&, std::string_view function, Args& args,
                       std::initializer_list<std::string_view> names, std::size_t required)
    : function_(function), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    throw Failure("TypeError", fmt::format("{}() takes at most {} arguments ({} given)", function,
                                           names.size(), args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto* const found = std::ranges::find(names, std::string_view(name));
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (found == names.end() || values_[index] != nullptr)
      throw Failure("TypeError", fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    values_[index] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values_[i] != nullptr) continue;
    throw Failure("TypeError", fmt::format("{}() misses the argument '{}'", function, names.begin()[i]));
  }
}

std::string Parameters::text(std::size_t index, std::string_view otherwise) const {
  if (!has(index)) return std::string(otherwise);
  const Value& value = *values_[index];
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (!value.is(Type::kString))
    throw Failure("TypeError", fmt::format("{}() argument {} must be str, not {}", function_, index + 1,
                                           type_name(value)));
  return value.text();
}

std::int64_t Parameters::integer(std::size_t index, std::int64_t otherwise) const {
  return has(index) ? index_of(*values_[index]) : otherwise;
}

std::int64_t index_of(const Value& value) {
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (!value.is_integral())
    throw Failure("TypeError",
                  fmt::format("'{}' object cannot be interpreted as an integer", type_name(value)));
  if (!value.is(Type::kBigInt)) return value.int_value();
  return value.as<BigObject>().value.negative() ? std::numeric_limits<std::int64_t>::min()
                                                : std::numeric_limits<std::int64_t>::max();
}

}  // namespace primus::jinja
