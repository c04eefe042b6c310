# Writes OUTPUT, a header with one number that stands for the contract between the program and its device plug-ins:
# a hash of the headers in INPUTS and of the compiler. Run as a script; the file is left alone when nothing changed.
set(text "${COMPILER}")
foreach(input ${INPUTS})
  file(SHA256 ${input} hash)
  string(APPEND text "${hash}")
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING ${hash} 0 16 hash)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Written by cmake/PluginAbi.cmake: a hash of the headers that a device plug-in shares with the program.
#pragma once

#include <cstdint>

namespace primus::turbo {

constexpr std::uint64_t kPluginAbi = 0x@hash@;

}  // namespace primus::turbo
]])
