// How fast the GPUs of a node add up a tensor, and whether that is enough.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/check.h"
#include "safe/preflight/performance.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {

// What one all-reduce showed.
struct AllReduceFacts {
  std::string what;            // "all-reduce of 8 GPUs"
  int gpus = 0;                // that take part
  std::optional<double> rate;  // GB/s; none: it was not measured
  std::string problem = {};    // then: why. Empty: there are no two GPUs
  std::string where = {};      // "rank 3"
  // The threshold, and whether the user demands it: what was asked for and cannot be measured has failed.
  std::optional<Wanted> least = {};
  bool is_demanded = false;
};

// Appends what the rate means. Without a threshold it is shown, and not judged.
void check_all_reduce(const AllReduceFacts& facts, std::vector<Finding>& findings);

// The least that an all-reduce between this machine's GPUs must reach: of the first product in the table that
// has such a number; nothing where none has.
std::optional<Wanted> least_all_reduce(const std::vector<Hardware>& table,
                                       const std::vector<turbo::DeviceListing>& devices);

}  // namespace primus::preflight
