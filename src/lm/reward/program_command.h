// The command line of a program of the user, which stays alive and replies to lines: a reward program or an
// environment. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace primus {

struct ProgramCommand {
  std::string name;                // the name of the program's file, without folders
  std::vector<std::string> words;  // the program's file as an absolute path, then its arguments
};

// Splits `command` into words at spaces and tabs, except inside single or double quotes, and finds the
// program's file: relative to `folder`, or in the folders of PATH if its name has no '/'. `setting` begins
// messages: "reward 'program:./reward.py'". `form` is how users write the setting. Throws Error(kInvalid) for
// a quote that is not closed, and for a program that does not exist or is not executable.
ProgramCommand program_command(const std::string& command, const std::string& setting, std::string_view form,
                               const std::string& folder);

// Returns why a program that ended gave no reply: `problem`, with the last lines of its standard error, which
// often name the cause. `errors`: the end of that text.
std::string ended_program(const std::string& problem, const std::string& errors);

// Returns the error for a program that has ended `times` times in a row. `kind` is "reward program" or
// "environment". `errors`: the end of the program's standard error, whose last lines become part of the
// message.
Error broken_program(std::string_view kind, const std::string& name, int times, const std::string& problem,
                     const std::string& errors, std::string hint);

}  // namespace primus
