// The program: its command line, its help, and its handling of errors.
//
//   primus <command> ...
//   primus [--config F] [--debug] [--dry-run] [--version] <direct|container|slurm> [mode args] -- <command>
//
// The second form is AMD Primus's; `direct` runs the command on this machine.
//
// Exit codes: 0 success; 1 a library or driver is missing; 2 bad arguments, config or input; 3 a failure
// while running, or a failed verification.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace primus::cli {

// Runs one command line (without the program name) and returns its exit code. Does not throw.
int run(std::span<const std::string> words, Console& console);

}  // namespace primus::cli
