#include "launch/options/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "launch/options/required_file.h"

namespace primus::launch {
namespace {

constexpr std::uint64_t kMaxEnvironmentFile = 1 << 20;

bool starts_name(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }

}  // namespace

bool is_variable_name(std::string_view name) {
  return !name.empty() && starts_name(name[0]) && std::all_of(name.begin(), name.end(), [](char c) {
    return starts_name(c) || (c >= '0' && c <= '9');
  });
}

Assignment parse_assignment(std::string_view text, std::string_view option) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  if (equals == std::string_view::npos) {
    throw invalid(fmt::format("{} needs NAME=VALUE, not '{}'", option, text));
  }
  if (!is_variable_name(name)) {
    throw invalid(fmt::format("{}: '{}' is not the name of a variable", option, name),
                  "a name has letters, digits and '_', and does not begin with a digit");
  }
  return {std::string(name), std::string(text.substr(equals + 1))};
}

void refuse_repeated(const std::vector<std::string>& assignments, std::string_view option) {
  std::map<std::string, std::string> seen;
  for (const std::string& text : assignments) {
    if (text.find('=') == std::string::npos) continue;
    Assignment assignment = parse_assignment(text, option);
    const auto [earlier, is_new] = seen.emplace(assignment.name, assignment.value);
    if (is_new || earlier->second == assignment.value) continue;
    throw invalid(fmt::format("{} sets {} twice, to different values", option, assignment.name),
                  "keep one of them");
  }
}

void refuse_other_values(const std::map<std::string, std::string>& given,
                         const std::map<std::string, std::string>& outer) {
  for (const auto& [name, value] : given) {
    const auto found = outer.find(name);
    if (found == outer.end() || found->second == value) continue;
    throw invalid(fmt::format("--env sets {} for the container and for 'direct', to different values", name),
                  "keep one of them");
  }
}

std::vector<std::string> read_environment_file(const Path& file) {
  require_file(file, "file of variables", "--env accepts NAME=VALUE or a file of such lines");
  const std::string text = read_file(file, kMaxEnvironmentFile);
  std::vector<std::string> variables;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const auto trim = [](std::string_view& part) {
      while (!part.empty() && std::string_view(" \t\r").find(part.front()) != std::string_view::npos)
        part.remove_prefix(1);
      while (!part.empty() && std::string_view(" \t\r").find(part.back()) != std::string_view::npos)
        part.remove_suffix(1);
    };
    trim(line);
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("export ")) line.remove_prefix(7);
    trim(line);
    const std::size_t equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    const Error bad = invalid("this line is not NAME=VALUE",
                              "write values with or without quotes; to compute values, use a --patch script "
                              "that prints env.NAME=VALUE")
                          .at(fmt::format("{}:{}", file.string(), number));
    if (equals == std::string_view::npos || !is_variable_name(name)) throw bad;
    std::string_view value = line.substr(equals + 1);
    const char quote = value.empty() ? '\0' : value[0];
    if (quote == '"' || quote == '\'') {
      if (value.size() < 2 || value.back() != quote ||
          value.substr(1, value.size() - 2).find(quote) != std::string_view::npos) {
        throw bad;
      }
      value = value.substr(1, value.size() - 2);
    }
    // A shell would interpret these characters, except within single quotes.
    if (quote != '\'' &&
        value.find_first_of(quote == '"' ? "$`\\" : "$`\\;&|<> \t'\"") != std::string_view::npos)
      throw bad;
    variables.push_back(fmt::format("{}={}", name, value));
  }
  return variables;
}

}  // namespace primus::launch
