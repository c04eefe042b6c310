// The only file that includes CLI11, which takes seconds to compile.
#include "cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/text/suggest.h"

namespace primus::cli {
namespace {

template <class Number>
Number to_number(const std::string& text, const std::string& name,
                 const std::optional<std::pair<double, double>>& range) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    throw invalid(
        fmt::format("{} needs a{} number, not '{}'", name, std::is_integral_v<Number> ? " whole" : "", text));
  }
  // The comparison is negated, so that NaN is outside every range.
  if (range && !(static_cast<double>(value) >= range->first && static_cast<double>(value) <= range->second))
    throw invalid(fmt::format("{} must be from {} to {}, not {}", name, range->first, range->second, text));
  return value;
}

std::string shown_name(const Argument& argument) {
  return argument.names.empty() ? argument.value : argument.names.front();
}

bool repeats(const Argument& argument) {
  return std::holds_alternative<std::vector<std::string>*>(argument.target);
}

// Refuses different values of an option that has one value. Otherwise only the last value would have an
// effect.
void refuse_contradiction(const Argument& argument, const std::vector<std::string>& values) {
  const auto differs = [&](const std::string& value) { return value != values.front(); };
  if (std::none_of(values.begin(), values.end(), differs)) return;
  throw invalid(
      fmt::format("{} is given more than once: '{}'", shown_name(argument), fmt::join(values, "', '")),
      argument.if_repeated.empty() ? "keep one of these values" : argument.if_repeated);
}

void store(const Argument& argument, const std::vector<std::string>& values) {
  const std::string name = shown_name(argument);
  const std::string& last = values.back();
  if (!repeats(argument)) refuse_contradiction(argument, values);
  for (const Refusal& refusal : argument.refused) {
    if (refusal.name == last) {
      throw invalid(fmt::format("{} cannot be '{}': {}", name, last, refusal.reason), refusal.instead);
    }
  }
  if (!argument.choices.empty() &&
      std::find(argument.choices.begin(), argument.choices.end(), last) == argument.choices.end()) {
    const std::vector<std::string_view> known(argument.choices.begin(), argument.choices.end());
    const std::string near = did_you_mean(last, known);
    throw invalid(fmt::format("{} cannot be '{}'", name, last),
                  near.empty() ? fmt::format("choose one of {}", fmt::join(argument.choices, ", ")) : near);
  }
  struct Assign {
    const std::vector<std::string>& values;
    const std::string &last, &name;
    const std::optional<std::pair<double, double>>& range;
    void operator()(bool* to) const { *to = true; }
    void operator()(std::string* to) const { *to = last; }
    void operator()(std::int64_t* to) const { *to = to_number<std::int64_t>(last, name, range); }
    void operator()(double* to) const { *to = to_number<double>(last, name, range); }
    void operator()(std::optional<std::string>* to) const { *to = last; }
    void operator()(std::optional<std::int64_t>* to) const {
      *to = to_number<std::int64_t>(last, name, range);
    }
    void operator()(std::optional<double>* to) const { *to = to_number<double>(last, name, range); }
    void operator()(std::vector<std::string>* to) const { *to = values; }
  };
  std::visit(Assign{values, last, name, argument.range}, argument.target);
}

// Returns the hint for a word that the command does not accept: the option that reads files, if the word
// names a file, and else --prompt.
std::string option_for_word(const std::string& word, const Arguments& arguments, const std::string& command) {
  std::error_code none;
  const bool is_file = std::filesystem::exists(word, none);
  for (const char* option : {"--data", "--input", "--config"}) {
    if (is_file && arguments.find(option)) return fmt::format("did you mean '{} {}'?", option, word);
  }
  if (!is_file && arguments.find("--prompt")) return fmt::format("did you mean --prompt '{}'?", word);
  return fmt::format("'{} --help' shows what it accepts", command);
}

// Returns the hint for a second value after an option that takes one value each time ("--adapter a b");
// empty if `word` does not follow such a value.
std::string repeated_option(const std::string& word, std::span<const std::string> words,
                            const Arguments& arguments) {
  const auto at = std::ranges::find(words, word);
  if (at - words.begin() < 2 || at == words.end()) return "";
  const std::string &option = at[-2], &value = at[-1];
  const Argument* const argument = arguments.find(option);
  if (!argument || argument->value.empty() || !repeats(*argument) || value.starts_with('-')) return "";
  return fmt::format("write the option once for each value: {} {} {} {}", option, value, option, word);
}

Error unexpected(const std::string& word, const Arguments& arguments, const std::string& command) {
  if (!word.starts_with('-')) {
    return invalid(fmt::format("'{}' does not accept '{}'", command, word),
                   option_for_word(word, arguments, command));
  }
  const std::string name = word.substr(0, word.find('='));
  for (const Refusal& refusal : arguments.refusals()) {
    if (refusal.name == name) {
      return invalid(fmt::format("'{}' has no option '{}': {}", command, name, refusal.reason),
                     refusal.instead);
    }
  }
  std::vector<std::string_view> known{"--help"};
  for (const Argument& argument : arguments.all()) {
    known.insert(known.end(), argument.names.begin(), argument.names.end());
  }
  const std::string near = did_you_mean_option(name, known);
  return invalid(fmt::format("'{}' has no option '{}'", command, name),
                 near.empty() ? fmt::format("'{} --help' lists its options", command) : near);
}

}  // namespace

bool parse(const Arguments& arguments, std::span<const std::string> words, const std::string& command) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  bool help = false;
  app.add_flag("-h,--help", help);
  std::vector<std::pair<const Argument*, CLI::Option*>> options;
  for (const Argument& argument : arguments.all()) {
    const std::string names =
        argument.names.empty() ? argument.value : fmt::format("{}", fmt::join(argument.names, ","));
    CLI::Option* option = nullptr;
    if (argument.value.empty()) {
      option = app.add_flag(names);
    } else {
      option = app.add_option(names);
      option->type_name(argument.value);
      // A repeated option appends to a list; store() refuses other values of an option with one value. A
      // positional list collects all further words.
      if (repeats(argument)) {
        const bool takes_all = argument.names.empty() || argument.several;
        option->expected(1, takes_all ? CLI::detail::expected_max_vector_size : 1);
        option->allow_extra_args(takes_all);
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      } else {
        option->multi_option_policy(argument.names.empty() ? CLI::MultiOptionPolicy::TakeLast
                                                           : CLI::MultiOptionPolicy::TakeAll);
      }
    }
    options.emplace_back(&argument, option);
  }
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 expects reverse order
  } catch (const CLI::ParseError& error) {
    throw invalid(error.what(), fmt::format("'{} --help' shows how it is used", command));
  }
  if (help) return false;

  const std::vector<std::string> extras = app.remaining();
  if (arguments.rest()) {
    store(*arguments.rest(), extras);
  } else if (!extras.empty()) {
    Error error = unexpected(extras.front(), arguments, command);
    const std::string hint = repeated_option(extras.front(), words, arguments);
    throw hint.empty() ? error : invalid(error.what(), hint);
  }
  for (const auto& [argument, option] : options) {
    if (option->count() > 0) {
      try {
        store(*argument, argument->value.empty() ? std::vector<std::string>{""} : option->results());
      } catch (Error& error) {
        if (error.hint().empty()) error.add_hint(fmt::format("'{} --help' shows what it needs", command));
        throw;
      }
    } else if (argument->required) {
      throw invalid(fmt::format("'{}' needs {}", command,
                                argument->names.empty() ? argument->value
                                                        : argument->names.front() + " " + argument->value),
                    extras.size() == 1 && std::filesystem::exists(extras.front())
                        ? option_for_word(extras.front(), arguments, command)
                        : fmt::format("'{} --help' has examples", command));
    }
  }
  return true;
}

}  // namespace primus::cli
