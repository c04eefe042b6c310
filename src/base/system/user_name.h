// The current user's name, for use in paths.
#pragma once

#include <string>

namespace primus {

// Returns "user" if there is no name or the name cannot be a folder name. Thread-safe.
std::string user_name();

}  // namespace primus
