#include "launch/direct/hooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/text/secrets.h"
#include "launch/options/assignment.h"
#include "launch/process.h"

namespace primus::launch {
namespace {

void add_files(const Path& folder, std::vector<Path>& files) {
  for (const std::string& name : Env::posix().list(folder)) {
    const Path file = folder / name;
    const bool runs = file.extension() == ".sh" || file.extension() == ".py";
    const auto status = runs ? Env::posix().status(file) : std::nullopt;
    if (status && status->type == FileStatus::Type::kFile) files.push_back(file);
  }
}

bool is_folder(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFolder;
}

bool is_key(std::string_view name) {
  return !name.empty() && name.back() != '.' && (name[0] < '0' || name[0] > '9') && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '.';
         });
}

// Parses "env.NAME=VALUE" (or `kind` instead of env); nullopt for other lines.
std::optional<Assignment> reported(std::string_view line, std::string_view kind,
                                   bool (*is_name)(std::string_view)) {
  if (!line.starts_with(kind)) return std::nullopt;
  line.remove_prefix(kind.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos || !is_name(line.substr(0, equals))) return std::nullopt;
  return Assignment{std::string(line.substr(0, equals)), std::string(line.substr(equals + 1))};
}

}  // namespace

std::vector<Path> hook_files(const std::vector<Path>& folders, const HookCommand& command) {
  for (const Path& folder : folders) {
    if (!is_folder(folder)) {
      throw invalid(fmt::format("there is no folder of hooks '{}'", folder.string()),
                    "correct 'hooks' in the section 'direct' of the launcher's settings, or --hooks");
    }
  }
  std::vector<Path> files;
  for (const Path& folder : folders) add_files(folder, files);
  for (const Path& folder : folders) {
    if (command.name.empty() || !is_plain_name(command.group) || !is_plain_name(command.name)) continue;
    const Path own = folder / command.group / command.name;
    if (is_folder(own)) add_files(own, files);
  }
  return files;
}

std::vector<std::string> interpreter_of(const Path& file) {
  if (file.extension() == ".py") return {"python3"};
  if (file.extension() == ".sh") return {"bash"};
  return {};
}

std::vector<std::string> run_hook(HookKind kind, const Path& file, const std::vector<std::string>& words,
                                  const std::function<bool(const std::string& name)>& is_fixed,
                                  const std::function<void(std::string_view)>& show) {
  const std::string what = fmt::format("{} {}", kind == HookKind::kHook ? "hook" : "patch", file.string());
  Step step{.name = what, .where = {}, .argv = interpreter_of(file)};
  step.argv.push_back(std::filesystem::absolute(file).string());
  step.argv.insert(step.argv.end(), words.begin(), words.end());
  std::vector<std::string> arguments;
  std::vector<Assignment> variables;
  const int code = run_group_and_read(step, [&](std::string_view line) {
    if (auto variable = reported(line, "env.", is_variable_name)) {
      variables.push_back(std::move(*variable));
    } else if (const auto extra = reported(line, "extra.", is_key)) {
      arguments.push_back("--" + extra->name);
      arguments.push_back(extra->value);
      show(fmt::format("{}: adds --{} {}", what, extra->name, shown_value(extra->name, extra->value)));
    } else {
      show(line);
    }
  });
  if (kind == HookKind::kPatch && code == 2) {
    show(what + ": not needed");
    return {};
  }
  if (code != 0) {
    throw Error(ErrorKind::kDependency,
                code > 128 ? fmt::format("{} was killed by signal {}", what, code - 128)
                           : fmt::format("{} failed with exit code {}", what, code),
                "its output is above; nothing was started");
  }
  for (const Assignment& variable : variables) {
    const bool fixed = is_fixed(variable.name);
    if (!fixed) setenv(variable.name.c_str(), variable.value.c_str(), 1);
    show(fmt::format("{}: {} {}={}", what, fixed ? "does not change, because --env sets it," : "sets",
                     variable.name, shown_value(variable.name, variable.value)));
  }
  return arguments;
}

}  // namespace primus::launch
