// NAME=VALUE of a variable, as launchers take it.
#pragma once

#include <string>
#include <string_view>

namespace primus::launch {

// "NAME=VALUE" split at the first '='. Throws Error(kInvalid), which does not repeat a secret, where `text`
// is none; `option`: what it was given to, for the message.
struct Assignment {
  std::string name, value;
};
Assignment parse_assignment(std::string_view text, std::string_view option);

// A name that a shell could set: [A-Za-z_][A-Za-z0-9_]*.
bool is_variable_name(std::string_view name);

}  // namespace primus::launch
