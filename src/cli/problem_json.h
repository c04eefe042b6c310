// A failure as JSON, for commands with --json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"

namespace primus::cli {

// {"error", "location", "hint", "exit_code", "problems": [{"error", "location", "hint", "kind"}]}. An error
// that stands for several lists each of them, any other itself. "kind" is "unsupported" for what is
// understood and not available here, "invalid" for bad input, and "failure" for the rest; "location" is
// FILE:LINE:COLUMN where there is one.
nlohmann::json problem_json(const Error& error);

}  // namespace primus::cli
