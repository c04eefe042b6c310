#include "launch/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace primus::launch {
namespace {

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

}  // namespace primus::launch
