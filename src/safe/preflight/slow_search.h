// Finds nodes with slow communication, and links that are slow only under load from many nodes. The search
// halves the set of nodes repeatedly, and measures all groups of one size at the same time. If a group is
// much slower than both its halves, the link between the halves is slow. Then the search measures pairs in
// several rounds. Each node has a different partner in each round. A node is slow if all its pairs are slow.
// The plan does not depend on results, so ranks need not agree on the next step. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "safe/preflight/finding.h"

namespace primus::preflight {

using Group = std::vector<int>;    // nodes, ascending
using Round = std::vector<Group>;  // groups without common nodes, measured at the same time

struct SearchPlan {
  // the first round has all nodes as one group; each further round halves the groups, down to two or three
  // nodes
  std::vector<Round> halves;
  std::vector<Round> pairs;
};
// `max_rounds`: maximum rounds of pairs; if all pairs need fewer rounds, all pairs are measured.
SearchPlan plan_search(int nodes, int max_rounds = 7);

struct SearchRates {
  // Rates in the order of the plan, in GB/s of bus bandwidth, which is comparable between group sizes.
  std::vector<std::vector<double>> halves, pairs;
};

// Returns findings about slow nodes and links. `names`: the nodes' names. A rate below `share` of its
// reference is slow.
std::vector<Finding> judge_search(const SearchPlan& plan, const SearchRates& rates,
                                  const std::vector<std::string>& names, double share = 0.6);

}  // namespace primus::preflight
