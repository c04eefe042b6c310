// The words before a command: global options and modes. Parsing, help, manual pages and completion use these
// declarations, like the declarations of a command's arguments.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace primus::cli {

// Global options, given before the mode or the command.
struct GlobalOptions {
  std::vector<std::string> config;  // files of launcher settings
  bool debug = false, dry_run = false, version = false;
  void declare(Arguments& arguments);
};

// One-sentence description of the program.
inline constexpr std::string_view kProgramSummary =
    "Primus trains foundation models: one program, from a laptop to a cluster";
// Examples in the program's help, one per line.
inline constexpr std::string_view kProgramExamples =
    "primus quickstart\n"
    "primus train pretrain --config examples/native/configs/CPU/llama_tiny-pretrain.yaml --dry-run\n"
    "primus generate output/primus/root/quickstart --prompt 'In the beginning'";

bool is_help(std::string_view word);  // --help, -h

// Returns the command with that name ("model verify"), or null.
const CommandEntry* find_command(std::string_view name);
// Returns whether commands with names "<word> ..." exist.
bool is_group(std::string_view word);

// Counts the leading words that are options declared in `arguments`, including their values. An unknown
// option counts as one word.
std::size_t count_options(const Arguments& arguments, std::span<const std::string> words);

// Kind of paths that a shell completes.
enum class Paths { kNone, kFiles, kFolders };
Paths paths_of(const Argument& argument);

}  // namespace primus::cli
