// Words of commands, as people copy them into a shell.
#pragma once

#include <string>

namespace primus {

// `word` as a shell takes it: in quotes where it needs them.
std::string shell_quoted(const std::string& word);

}  // namespace primus
