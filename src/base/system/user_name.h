// The name of the user who runs the program, as a part of paths.
#pragma once

#include <string>

namespace primus {

// "user" where there is no name, or none that can be a folder's. Any thread may call it.
std::string user_name();

}  // namespace primus
