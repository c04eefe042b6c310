// Compares the machines of a job: missing machines, different software or hardware, wrong clocks, and
// machines that are slower than the others. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "safe/preflight/finding.h"

namespace primus::preflight {

struct ClusterOptions {
  std::vector<std::string> missing = {};  // names of nodes or ranks that should have reported
  double missing_after = 0;               // seconds that rank 0 waited for the missing nodes or ranks
  double clock_skew_seconds = 30;  // limit between any two machines, including differences of start times
  bool same_start = false;         // all machines read their clocks within one second
  // A measurement is slow if it is below slow_share * median and differs from the median by more than the
  // usual scatter.
  double slow_share = 0.85;
};

// Compares the reports of all processes, one per process.
std::vector<Finding> compare_nodes(const std::vector<NodeReport>& nodes, const ClusterOptions& options);

// median_of() returns the median, or 0 for no values. scatter_of() returns the median absolute deviation from
// `middle`, scaled to estimate the standard deviation of normally distributed values.
double median_of(std::vector<double> values);
double scatter_of(const std::vector<double>& values, double middle);

}  // namespace primus::preflight
