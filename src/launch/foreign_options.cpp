#include "launch/foreign_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/suggest.h"

namespace primus::launch {

using Takes = ForeignOption::Takes;
using Times = ForeignOption::Times;

const ForeignOption* find_option(ForeignTable table, std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  for (const ForeignOption& option : table) {
    if (option.name == name || (name.size() == 1 && option.letter == name[0])) return &option;
    if (!option.another.empty() && option.another == name) return &option;
  }
  return nullptr;
}

std::optional<std::string> mistyped(ForeignTable table, std::string_view name) {
  std::vector<std::string_view> names;
  for (const ForeignOption& option : table) names.push_back(option.name);
  const std::string_view near = name.size() > 2 ? closest(name, names) : std::string_view();
  // Two letters more or less make another word of the same family: "--gpus" and "--gpu".
  if (near.empty() || edit_distance(name, near) > 2) return std::nullopt;
  return fmt::format("did you mean '--{}'?", near);
}

std::vector<GivenOption> read_options(ForeignTable table, std::span<const std::string> words,
                                      std::string_view tool, Unknown rest) {
  std::vector<GivenOption> given;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word.size() < 2 || word[0] != '-') {
      throw invalid(fmt::format("'{}' is no option of {}", word, tool),
                    "the command stands behind '--': ... -- train pretrain --config exp.yaml");
    }
    const bool is_long = word.starts_with("--");
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string name =
        is_long ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : word.substr(1, 1);
    const ForeignOption* const option = find_option(table, name);
    if (!option && is_long) {
      if (const auto near = mistyped(table, name)) {
        throw invalid(fmt::format("{} has no option '--{}'", tool, name), *near);
      }
      if (rest == Unknown::kRefuse) {
        throw invalid(fmt::format("{} has no option '--{}'", tool, name),
                      "options of the launcher within stand behind '--': container ... -- direct --numa -- "
                      "train pretrain ...");
      }
    }
    GivenOption found{option ? std::string(option->name) : name};
    const bool takes_value = !option || option->takes == Takes::kValue;
    if (equals != std::string::npos) {
      found.value = word.substr(equals + 1);
    } else if (!is_long && word.size() > 2) {  // -N4
      found.value = word.substr(2);
    } else if (takes_value && at + 1 < words.size() && (option || !words[at + 1].starts_with('-'))) {
      found.value = words[++at];
    } else if (option && option->takes == Takes::kValue) {
      throw invalid(fmt::format("{} of {} needs a value", word, tool));
    }
    if (option && option->takes == Takes::kNothing && found.value && *found.value != "true") {
      throw invalid(fmt::format("{} of {} takes no value, and has '{}'", is_long ? "--" + name : word, tool,
                                *found.value));
    }
    if (option && option->takes == Takes::kNothing) found.value.reset();
    given.push_back(std::move(found));
  }
  return given;
}

std::vector<GivenOption> merged(ForeignTable table, std::vector<GivenOption> base,
                                const std::vector<GivenOption>& over) {
  const auto times_of = [&](const GivenOption& option) {
    const ForeignOption* const known = find_option(table, option.name);
    return known ? known->times : Times::kOnce;
  };
  for (const GivenOption& option : over) {
    if (times_of(option) != Times::kAddUp)
      std::erase_if(base, [&](const GivenOption& earlier) { return earlier.name == option.name; });
  }
  for (const GivenOption& option : over) {
    if (times_of(option) == Times::kOnce)
      std::erase_if(base, [&](const GivenOption& earlier) { return earlier.name == option.name; });
    base.push_back(option);
  }
  return base;
}

const GivenOption* find_given(const std::vector<GivenOption>& given, std::string_view name) {
  const auto found = std::find_if(given.rbegin(), given.rend(),
                                  [&](const GivenOption& option) { return option.name == name; });
  return found == given.rend() ? nullptr : &*found;
}

std::string written(const GivenOption& option) {
  if (option.name.size() == 1) return "-" + option.name + option.value.value_or("");
  return option.value ? fmt::format("--{}={}", option.name, *option.value) : "--" + option.name;
}

}  // namespace primus::launch
