// Finds another framework's sources and Python on this machine.
#pragma once

#include <optional>
#include <string>

#include "backends/job.h"
#include "launch/plan.h"

namespace primus::backends {

struct Installation {
  Path checkout;                       // folder of the framework's sources; empty: not found
  std::string python = "python3";      // looked up in PATH if it has no '/'
  std::vector<std::string> looked_in;  // searched folders without a checkout, in order
};

// Looks for the framework's sources in `backend_path` (an option, or the experiment's key) and in
// BACKEND_PATH. Then looks for a folder with the framework's name in pins.yaml, in PRIMUS_THIRDPARTY_DIR,
// third_party/ and the folder of 'primus deps sync'. Looks for Python in VENV_ACTIVATE's environment, then in
// the environment that 'primus deps sync' made. Throws Error(kInvalid) if backend_path is not a checkout of
// the framework.
Installation find_installation(const config::BackendFields& fields,
                               const std::optional<std::string>& backend_path,
                               const launch::Surroundings& surroundings);

// Returns the error for a missing framework, with the searched folders and the way to install it.
Error not_installed(const config::BackendFields& fields, const Installation& installation);

}  // namespace primus::backends
