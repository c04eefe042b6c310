// Checks whether a preflight is complete: a run fails if it has no result for the checks and tests that the
// user asked for. Free functions without state.
#pragma once

#include "safe/preflight/report.h"

namespace primus::preflight {

// The checks and tests that the user asked for.
struct Assignment {
  bool sections = false;        // sections of the machine, selected by name
  bool only_tests = false;      // performance tests only
  bool lone_exchanges = false;  // tests within or between nodes, although the job has only one rank
};

// Adds the findings to the report's cluster. Call this function when the report contains the findings and
// measurements of all nodes.
void check_completeness(const Assignment& asked, Report& report);

// Inserts the finding "the process runs" at the beginning, so that the report of a rank without other checks
// is not empty.
void check_process(NodeReport& report);

}  // namespace primus::preflight
