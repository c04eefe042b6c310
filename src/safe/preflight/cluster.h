// Compares the machines of a job: who is missing, whose software or hardware differs, whose clock is off, who
// is slower than the others. Pure.
#pragma once

#include <string>
#include <vector>

#include "safe/preflight/finding.h"

namespace primus::preflight {

struct ClusterOptions {
  std::vector<std::string> missing = {};  // nodes or ranks that should have reported, by name
  double missing_after = 0;               // seconds that was waited for them
  double clock_skew_seconds = 30;         // between any two machines; starting them takes time as well
  bool same_start = false;                // the reports' clocks were read within a second of each other
  // A measurement is slow that lies below this share of the median, and further from it than the others
  // scatter.
  double slow_share = 0.85;
};

// Of one report for each process.
std::vector<Finding> compare_nodes(const std::vector<NodeReport>& nodes, const ClusterOptions& options);

// The middle of values; 0 of none. And the middle of their distances from `middle`, scaled to be the standard
// deviation of normal ones.
double median_of(std::vector<double> values);
double scatter_of(const std::vector<double>& values, double middle);

}  // namespace primus::preflight
