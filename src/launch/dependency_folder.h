// The folder for other frameworks' sources. `primus deps sync` fills it, and these frameworks' jobs read it.
#pragma once

#include "launch/plan.h"

namespace primus::launch {

// Returns PRIMUS_THIRDPARTY_DIR, or ~/.cache/Primus/third_party, as in AMD Primus. The folder may not exist.
Path dependency_folder(const Surroundings& surroundings);

}  // namespace primus::launch
