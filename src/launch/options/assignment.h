// Settings of environment variables, NAME=VALUE, for launchers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

// Splits "NAME=VALUE" at the first '='. Throws Error(kInvalid) for any other text; the message does not
// contain the text, which may be a secret. `option`: the option whose value is parsed, for the message.
struct Assignment {
  std::string name, value;
};
Assignment parse_assignment(std::string_view text, std::string_view option);

// Throws Error(kInvalid) if `assignments`, the values of an option, set a variable to different values. The
// message does not contain the values, which may be secrets. Ignores texts without '='.
void refuse_repeated(const std::vector<std::string>& assignments, std::string_view option);
// Throws Error(kInvalid) for variables of `direct` (`given`) to which the container around it (`outer`) gives
// other values. The message does not contain the values.
void refuse_other_values(const std::map<std::string, std::string>& given,
                         const std::map<std::string, std::string>& outer);

// Reads a file of lines NAME=VALUE. Allows a leading "export ", quotes around values, empty lines and
// comments; other shell code is an Error(kInvalid) with file:line.
std::vector<std::string> read_environment_file(const Path& file);

// Returns whether a shell could set a variable of this name: [A-Za-z_][A-Za-z0-9_]*.
bool is_variable_name(std::string_view name);

}  // namespace primus::launch
