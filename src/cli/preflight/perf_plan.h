// Plans the performance tests of 'primus preflight' from the options: which tests run, and the sizes and
// groups of the communication tests. Pure functions.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "safe/preflight/communication.h"

namespace primus::cli {

// The options as the user gave them. An empty option means its default.
struct PerfRequest {
  bool quick = false, one_group = false;  // one_group: --no-split-nodes-subgroup
  std::string tests, sizes, intra_sizes, inter_sizes, ring_sizes, intra_groups, inter_groups;
};

// The machine and job that the tests run on.
struct PerfPlace {
  bool gpu = false;
  int local_ranks = 1, nodes = 1;
};

struct PerfPlan {
  std::set<std::string> tests;
  preflight::CommunicationPlan communication;
  bool has(const char* test) const { return tests.count(test) > 0; }
  bool any_communication() const;
};

// Throws Error(kInvalid) for invalid words, sizes and groups.
PerfPlan plan_perf(const PerfRequest& request, const PerfPlace& place);

// given_sizes() returns the options for sizes and groups that the user gave. idle_sizes() returns the given
// options that the plan does not use.
std::vector<std::string> given_sizes(const PerfRequest& request);
std::vector<std::string> idle_sizes(const PerfRequest& request, const PerfPlan& plan);
// Returns whether --tests contains `test`.
bool names_test(const PerfRequest& request, const std::string& test);

// Returns "gemm, memory, ...", for help and errors.
std::string perf_tests();

}  // namespace primus::cli
