// From the words of a command line to a command's declared arguments, and back to its help text.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace primus::cli {

// Fills the targets of `arguments`. False when --help was asked for (then nothing is checked). Throws
// Error(kInvalid) for an unknown flag (with the nearest known one), a missing or superfluous value, a value
// of the wrong type.
bool parse(const Arguments& arguments, std::span<const std::string> words, const std::string& command);

// The text of --help: of a command, of the program, and of a group of commands ("model"). It fits `width`
// columns, of which 40 to 100 are used; examples keep their lines.
std::string help_text(const CommandEntry& entry, const Arguments& arguments, const std::string& program,
                      std::size_t width);
std::string overview_text(const std::string& program, std::size_t width);
std::string group_help_text(const std::string& group, const std::string& program, std::size_t width);

// What help says of an argument besides its name: meaning, choices, default.
std::string explanation(const Argument& argument);

}  // namespace primus::cli
