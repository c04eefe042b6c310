#include "launch/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/system/shell.h"
#include "base/system/subprocess.h"
#include "base/text/secrets.h"

extern char** environ;

namespace primus::launch {

Surroundings Surroundings::here() {
  Surroundings here;
  here.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  here.variable_names = [] {
    std::vector<std::string> names;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      if (text.find('=') != std::string::npos) names.push_back(text.substr(0, text.find('=')));
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  here.program = std::filesystem::read_symlink("/proc/self/exe").string();
  here.user = geteuid();
  here.group = getegid();
  return here;
}

std::optional<std::string> Surroundings::setting(const std::string& name) const {
  auto value = variable(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::optional<Path> Surroundings::find_program(const std::string& name) const {
  const std::string file =
      primus::find_program(name, variable("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  return file.empty() ? std::nullopt : std::optional<Path>(file);
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quoted(word);
  return line;
}

std::string render(const Plan& plan) {
  std::string text;
  int number = 0;
  for (const Step& step : plan.steps) {
    text += fmt::format("{}. {}, {}\n", ++number, step.name, step.where);
    for (const std::string& note : step.notes) text += fmt::format("   {}\n", note);
    std::vector<std::string> names = step.unset;
    for (const std::string& name : names) text += fmt::format("   unset {}\n", name);
    for (const auto& [name, value] : step.environment) {
      const std::string shown = shown_value(name, value);
      text += fmt::format("   export {}={}\n", name, shown == kRedacted ? shown : shell_quoted(shown));
    }
    text += fmt::format("   {}\n", shell_line(step.argv));
    if (step.input.empty()) continue;
    text += fmt::format("   with the {}:\n", step.input_name);
    for (std::size_t begin = 0; begin < step.input.size();) {
      const std::size_t end = std::min(step.input.find('\n', begin), step.input.size());
      text += fmt::format("   | {}\n", step.input.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const std::string& rank : plan.ranks) text += fmt::format("   {}\n", rank);
  return text;
}

}  // namespace primus::launch
