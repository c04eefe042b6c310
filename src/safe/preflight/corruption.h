// Does a device compute rightly, every time? Matrix products of small whole numbers are exact in fp32 in any
// order of summation, on any device: the first result is proven right by whole-number arithmetic on the host
// (each row against a random weighting of its columns), and every further one must have its checksum. All
// devices of all machines have the same checksum for the same sides.
//
// What it cannot see: errors of other units than those of matrix products, and errors that need another load
// or temperature.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"

namespace primus::preflight {

struct CorruptionOptions {
  std::int64_t side = 1024;  // of square matrices; at most 16384
  int rounds = 20;
};

struct CorruptionResult {
  std::uint32_t checksum = 0;  // CRC32C of the right result; 0: the first one was wrong already
  int rounds = 0, wrong = 0;   // products, and those with a wrong element
  std::string first_wrong;     // "round 3, row 17"
};

// Throws Error for a device that fails. One thread.
CorruptionResult scan_for_corruption(Device& device, const CorruptionOptions& options);

}  // namespace primus::preflight
