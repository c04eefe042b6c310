// Checks that files which a launcher's options or variables name exist.
#pragma once

#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus::launch {

// Throws Error(kInvalid) if the file is missing or is a folder. `what`: the kind of file for the message,
// such as "script". `hint`: the next step for the user.
void require_file(const Path& file, std::string_view what, const std::string& hint);

}  // namespace primus::launch
