// Errors as JSON, for commands with --json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"

namespace primus::cli {

// Returns {"error", "location", "hint", "exit_code", "problems": [{"error", "location", "hint", "kind"}]}.
// "problems" lists the problems of an error; an error with one problem is its only entry. "kind" is
// "unsupported" for valid input that is not available here, "invalid" for bad input, and "failure" for other
// errors. "location" is FILE:LINE:COLUMN if known.
nlohmann::json problem_json(const Error& error);

}  // namespace primus::cli
