// Text from a file as an error message holds it.
#pragma once

#include <string>
#include <string_view>

namespace primus {

// `text`, cut between characters behind 120 bytes, and without a NUL, which would end what().
std::string excerpt(std::string_view text);

}  // namespace primus
