// Parses a command line into a command's declared arguments, and formats their help.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace primus::cli {

// Fills the targets of `arguments`. Returns false if --help is given, without further checks. Throws
// Error(kInvalid) for an unknown flag (naming the nearest known one), a missing or superfluous value, a value
// of the wrong type, and different values of an option that has one value.
bool parse(const Arguments& arguments, std::span<const std::string> words, const std::string& command);

// Returns the text of --help for a command, for the program, and for a group of commands ("model"). Text is
// wrapped at `width`, clamped to 40 to 100 columns; examples are not wrapped.
std::string help_text(const CommandEntry& entry, const Arguments& arguments, const std::string& program,
                      std::size_t width);
std::string overview_text(const std::string& program, std::size_t width);
std::string group_help_text(const std::string& group, const std::string& program, std::size_t width);

// Returns the help text of an argument: meaning, choices, default.
std::string explanation(const Argument& argument);

}  // namespace primus::cli
