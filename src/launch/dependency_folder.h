// Where `primus deps sync` keeps the sources of other frameworks, and where their jobs look for them.
#pragma once

#include "launch/plan.h"

namespace primus::launch {

// PRIMUS_THIRDPARTY_DIR, or ~/.cache/Primus/third_party, where Primus keeps them. It may not be there.
Path dependency_folder(const Surroundings& surroundings);

}  // namespace primus::launch
