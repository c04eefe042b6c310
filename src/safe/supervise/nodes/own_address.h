// The address of this machine that other machines of the job can reach. Free functions.
#pragma once

#include <cstdint>
#include <string>

namespace primus::supervise {

// Returns this machine's address on the way to `host`; empty if there is no way.
std::string address_towards(const std::string& host, std::uint16_t port);

}  // namespace primus::supervise
