// Quoting of words in commands that users copy into a shell.
#pragma once

#include <string>

namespace primus {

// Returns `word` as shell syntax, in quotes if quotes are needed.
std::string shell_quoted(const std::string& word);

}  // namespace primus
