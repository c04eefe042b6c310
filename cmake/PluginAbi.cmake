# Writes OUTPUT, a header with one number NAMESPACE::NAME that identifies the interface between the program
# and one kind of plug-in: a hash of the headers in INPUTS and of the compiler. Run as a script; an unchanged
# file is not rewritten.
set(text "${COMPILER}")
foreach(input ${INPUTS})
  file(SHA256 ${input} hash)
  string(APPEND text "${hash}")
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING ${hash} 0 16 hash)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Written by cmake/PluginAbi.cmake: a hash of the headers that a plug-in shares with the program.
#pragma once

#include <cstdint>

namespace @NAMESPACE@ {

constexpr std::uint64_t @NAME@ = 0x@hash@;

}  // namespace @NAMESPACE@
]])
