#include "launch/options/foreign_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/suggest.h"

namespace primus::launch {

using Takes = ForeignOption::Takes;
using Times = ForeignOption::Times;

namespace {

std::string_view without_dashes(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  return name;
}

bool is_called(const ForeignOption& option, std::string_view name) {
  return option.name == name || (name.size() == 1 && option.letter == name[0]) ||
         (!option.another.empty() && option.another == name);
}

}  // namespace

const ForeignOption* find_option(ForeignTable table, std::string_view name, std::string_view tool) {
  name = without_dashes(name);
  const ForeignOption* other = nullptr;
  for (const ForeignOption& option : table) {
    if (!is_called(option, name)) continue;
    if (tool.empty() || option.only.empty() || option.only == tool) return &option;
    if (!other) other = &option;
  }
  return other;
}

bool takes(const ForeignOption& option, const std::optional<std::string>& value) {
  if (!value || value->empty()) return option.takes != Takes::kValue;
  if (option.takes == Takes::kNothing) return false;
  return option.takes == Takes::kTruth || !misfit(option.form, *value);
}

bool takes(ForeignTable table, const GivenOption& option, std::string_view tool) {
  bool known = false;
  for (const ForeignOption& entry : table) {
    if (!is_called(entry, option.name)) continue;
    known = true;
    const bool its_own = tool.empty() || entry.only.empty() || entry.only == tool;
    if (its_own && takes(entry, option.value)) return true;
  }
  return !known;
}

std::optional<std::string> mistyped(ForeignTable table, std::string_view name) {
  std::vector<std::string_view> names;
  for (const ForeignOption& option : table) names.push_back(option.name);
  const std::string_view near = name.size() > 2 ? closest(name, names) : std::string_view();
  // A name that differs from all names in the table by more than two letters is probably a valid option that
  // the table lacks.
  if (near.empty() || edit_distance(name, near) > 2) return std::nullopt;
  return fmt::format("did you mean '--{}'?", near);
}

namespace {

// Returns how repetitions of the option are treated. All repetitions of an unknown option are passed on.
Times times_of(ForeignTable table, const GivenOption& option) {
  const ForeignOption* const known = find_option(table, option.name);
  return known ? known->times : Times::kReplace;
}

// Refuses different values of an option if only the last value would have an effect.
void refuse_contradictions(ForeignTable table, const std::vector<GivenOption>& given, std::string_view tool) {
  for (auto option = given.begin(); option != given.end(); ++option) {
    if (times_of(table, *option) != Times::kOnce) continue;
    const auto first = std::find_if(given.begin(), option,
                                    [&](const GivenOption& earlier) { return earlier.name == option->name; });
    if (first->value == option->value) continue;
    throw invalid(fmt::format("{} and {} contradict each other: {} would use only the last", written(*first),
                              written(*option), tool),
                  "keep one of them");
  }
}

std::vector<GivenOption> read_words(ForeignTable table, std::span<const std::string> words,
                                    std::string_view tool, Unknown rest) {
  std::vector<GivenOption> given;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word.size() < 2 || word[0] != '-') {
      throw invalid(fmt::format("'{}' is not an option of {}", word, tool),
                    "write the command after '--': ... -- train pretrain --config exp.yaml");
    }
    const bool is_long = word.starts_with("--");
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string name =
        is_long ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : word.substr(1, 1);
    const ForeignOption* const option = find_option(table, name, tool);
    if (!option && is_long) {
      if (const auto near = mistyped(table, name)) {
        throw invalid(fmt::format("{} has no option '--{}'", tool, name), *near);
      }
      if (rest == Unknown::kRefuse) {
        throw invalid(fmt::format("{} has no option '--{}'", tool, name),
                      "write options of the launcher in the container after '--': container ... -- direct "
                      "--numa -- train pretrain ...");
      }
    }
    GivenOption found{option ? std::string(option->name) : name};
    const bool takes_value = !option || option->takes == Takes::kValue;
    const bool is_switch = option && option->takes == Takes::kNothing;
    if (equals != std::string::npos) {
      found.value = word.substr(equals + 1);
      // several one-letter options in one word, as in -vl
    } else if (!is_long && word.size() > 2 && is_switch) {
      std::vector<std::string> others(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
      others.insert(others.begin(), "-" + word.substr(2));
      given.push_back(std::move(found));
      for (GivenOption& other : read_words(table, others, tool, rest)) given.push_back(std::move(other));
      return given;
    } else if (!is_long && word.size() > 2) {  // an option and its value in one word, as in -N4
      found.value = word.substr(2);
    } else if (takes_value && at + 1 < words.size() && (option || !words[at + 1].starts_with('-'))) {
      found.value = words[++at];
    } else if (option && option->takes == Takes::kValue) {
      throw invalid(fmt::format("{} of {} needs a value", word, tool));
    }
    const std::string shown = is_long ? "--" + name : word.substr(0, 2);
    if (is_switch && found.value) {
      const bool truth = *found.value == "true" || *found.value == "false";
      if (!truth)
        throw invalid(
            fmt::format("{} of {} does not accept a value, but has '{}'", shown, tool, *found.value));
      if (*found.value == "false") continue;
      found.value.reset();
    }
    if (option && found.value && !found.value->empty() && option->takes != Takes::kTruth)
      require_form(option->form, *found.value, fmt::format("{} of {}", shown, tool));
    given.push_back(std::move(found));
  }
  return given;
}

}  // namespace

std::vector<GivenOption> read_options(ForeignTable table, std::span<const std::string> words,
                                      std::string_view tool, Unknown rest) {
  std::vector<GivenOption> given = read_words(table, words, tool, rest);
  refuse_contradictions(table, given, tool);
  return given;
}

std::vector<GivenOption> merged(ForeignTable table, std::vector<GivenOption> base,
                                const std::vector<GivenOption>& over) {
  for (const GivenOption& option : over) {
    if (times_of(table, option) != Times::kAddUp)
      std::erase_if(base, [&](const GivenOption& earlier) { return earlier.name == option.name; });
  }
  for (const GivenOption& option : over) {
    if (times_of(table, option) == Times::kOnce)
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
