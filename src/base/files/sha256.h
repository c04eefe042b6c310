// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104): used to compare data between ranks, and to authenticate
// with a token without sending it. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

using Sha256 = std::array<std::uint8_t, 32>;

Sha256 sha256(std::string_view data);
Sha256 hmac_sha256(std::string_view key, std::string_view data);

// Compares in a time that does not depend on the position of the first difference.
bool equal_in_constant_time(std::string_view a, std::string_view b);

std::string hex(std::string_view bytes);  // returns lower-case digits
inline std::string_view as_text(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Returns `bytes` random bytes from the system. Throws Error(kIo) if the system cannot provide random bytes.
std::string random_bytes(std::size_t bytes);

}  // namespace primus
