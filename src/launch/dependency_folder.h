// The folder for other frameworks' sources, which `primus deps sync` fills and their jobs read.
#pragma once

#include "launch/plan.h"

namespace primus::launch {

// Returns PRIMUS_THIRDPARTY_DIR, or ~/.cache/Primus/third_party, as in AMD Primus. It may not exist.
Path dependency_folder(const Surroundings& surroundings);

}  // namespace primus::launch
