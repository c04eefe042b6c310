// Compares the all-reduce speed of a node's GPUs with a threshold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/check.h"
#include "safe/preflight/performance.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {

// The result of one all-reduce measurement.
struct AllReduceFacts {
  std::string what;            // "all-reduce of 8 GPUs"
  int gpus = 0;                // GPUs that take part
  std::optional<double> rate;  // GB/s; nullopt: not measured
  std::string problem = {};    // why the rate was not measured; empty: fewer than two GPUs
  std::string where = {};      // "rank 3"
  // The threshold. If the user has set it and the rate cannot be measured, the check fails.
  std::optional<Wanted> minimum = {};
  bool is_demanded = false;
};

// Appends a finding about the rate. Without a threshold, the rate is reported but not judged.
void check_all_reduce(const AllReduceFacts& facts, std::vector<Finding>& findings);

// Returns the minimum all-reduce rate of this machine's GPUs, from the first matching product of the table
// with such a rate; nullopt: no such product.
std::optional<Wanted> min_all_reduce(const std::vector<Hardware>& table,
                                     const std::vector<turbo::DeviceListing>& devices);

}  // namespace primus::preflight
