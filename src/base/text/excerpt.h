// Shortens text from a file for error messages.
#pragma once

#include <string>
#include <string_view>

namespace primus {

// Returns `text` for an error message: the first 120 bytes, cut between characters and followed by "..." if
// it is longer. Writes NUL as "\x00", because a NUL would end what().
std::string excerpt(std::string_view text);

}  // namespace primus
