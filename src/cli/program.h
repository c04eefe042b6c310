// The program as a whole: its grammar, its help, and what becomes of errors.
//
//   primus <command> ...
//   primus [--config F] [--debug] [--dry-run] [--version] <direct|container|slurm> [mode args] -- <command>
//   ...
//
// The second form is Primus's own; `direct` runs the command right here.
//
// Exit codes: 0 done; 1 a library or driver is missing; 2 bad arguments, config or input; 3 failed while
// running, or what was to be verified is not so.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace primus::cli {

// Runs one command line (the program's name left out) and returns its exit code. Never throws.
int run(std::span<const std::string> words, Console& console);

}  // namespace primus::cli
