// Which speeds 'primus preflight' measures: its --tests, sizes and groups, as numbers. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "safe/preflight/communication.h"

namespace primus::cli {

// As given; empty: the default.
struct PerfRequest {
  bool quick = false, one_group = false;  // one_group: --no-split-nodes-subgroup
  std::string tests, sizes, intra_sizes, inter_sizes, ring_sizes, intra_groups, inter_groups;
};

// Where it runs.
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

// Throws Error(kInvalid) for words, sizes and groups that cannot be.
PerfPlan plan_perf(const PerfRequest& request, const PerfPlace& place);

// The options of sizes and groups that were given; and those of them that no test of the plan asks about.
std::vector<std::string> given_sizes(const PerfRequest& request);
std::vector<std::string> idle_sizes(const PerfRequest& request, const PerfPlan& plan);
// Whether --tests has this word.
bool names_test(const PerfRequest& request, const std::string& test);

// "gemm, memory, ...": for help and errors.
std::string perf_tests();

}  // namespace primus::cli
