// Checks that a device computes correctly every time. Matrix products of small integers are exact in fp32 for
// any order of summation on any device. The host verifies the first result with integer arithmetic: it
// compares a randomly weighted sum of each row with the sum computed from the operands. Every later result
// must have the same checksum. For matrices of equal sides, all devices of all machines have the same
// checksum.
//
// The test detects only errors of the units that compute matrix products, and only at the load and
// temperature of the test.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"

namespace primus::preflight {

struct CorruptionOptions {
  std::int64_t side = 1024;  // side of the square matrices; at most 16384
  int rounds = 20;
};

struct CorruptionResult {
  std::uint32_t checksum = 0;  // CRC32C of the correct result; 0: the first result was wrong
  int rounds = 0, wrong = 0;   // number of products, and number of products with a wrong element
  std::string first_wrong;     // "round 3, row 17"
};

// Throws Error if the device fails. The host checks the products on one thread.
CorruptionResult scan_for_corruption(Device& device, const CorruptionOptions& options);

}  // namespace primus::preflight
