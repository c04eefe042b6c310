// Whether files can be created in a folder, for plans that must not change anything.
#pragma once

#include "base/files/file.h"

namespace primus {

// Returns whether this user can create files in `folder`. A folder that does not exist counts if the user can
// create it. The function creates nothing. Thread-safe.
bool can_create_files_in(const Path& folder);

}  // namespace primus
