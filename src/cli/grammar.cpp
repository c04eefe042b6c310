#include "cli/grammar.h"

#include <algorithm>

namespace primus::cli {

void GlobalOptions::declare(Arguments& arguments) {
  arguments.flag("--debug", debug, "show the log on the screen");
  arguments.flag("--dry-run,--dry_run", dry_run,
                 "before a mode: check everything, show the commands, and run nothing");
  arguments.flag("--version", version, "print the version");
  arguments.option("--config", "FILE", &config,
                   "before a mode: file with launcher settings that override .primus.yaml; may be repeated");
}

bool is_help(std::string_view word) { return word == "--help" || word == "-h"; }

const CommandEntry* find_command(std::string_view name) {
  const auto all = commands();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const CommandEntry& entry) { return entry.name == name; });
  return found == all.end() ? nullptr : &*found;
}

bool is_group(std::string_view word) {
  const std::string begin = std::string(word) + " ";
  const auto all = commands();
  return std::any_of(all.begin(), all.end(),
                     [&](const CommandEntry& entry) { return entry.name.starts_with(begin); });
}

std::size_t count_options(const Arguments& arguments, std::span<const std::string> words) {
  std::size_t at = 0;
  while (at < words.size() && words[at].starts_with('-') && words[at] != "--") {
    const Argument* const argument = arguments.find(words[at]);
    const bool has_value = words[at].find('=') != std::string::npos;
    at += argument && !argument->value.empty() && !has_value ? 2 : 1;
  }
  return std::min(at, words.size());
}

Paths paths_of(const Argument& argument) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), argument.value) != names.end();
  };
  if (is_one_of({"FILE", "PATH", "PREFIX", "OUT"})) return Paths::kFiles;
  if (is_one_of({"FOLDER", "DIR", "MODEL", "RUN", "FROM", "TO"})) return Paths::kFolders;
  return Paths::kNone;
}

}  // namespace primus::cli
