// Finds nodes that are slow to talk to, and links that are slow only when many use them. The nodes are halved
// again and again, all groups of one size at the same time: where a group is much slower than its two halves,
// what lies between the halves is. Then pairs in several rounds, each node with another one each time: a node
// is slow whose pairs are, whoever the other is. The plan does not depend on results, so that no rank has to
// tell the others what comes next. Pure.
#pragma once

#include <string>
#include <vector>

#include "safe/preflight/finding.h"

namespace primus::preflight {

using Group = std::vector<int>;    // nodes, ascending
using Round = std::vector<Group>;  // groups that share no node, measured at the same time

struct SearchPlan {
  std::vector<Round> halves;  // the whole first, then halves of it, down to three nodes or two
  std::vector<Round> pairs;
};
// `most_rounds` of pairs; every pair where that is enough.
SearchPlan plan_search(int nodes, int most_rounds = 7);

struct SearchRates {
  // As the plan: GB/s of bus bandwidth, which is comparable between groups of different sizes.
  std::vector<std::vector<double>> halves, pairs;
};

// `names` of the nodes. A rate below `share` of what it is compared with is slow.
std::vector<Finding> judge_search(const SearchPlan& plan, const SearchRates& rates,
                                  const std::vector<std::string>& names, double share = 0.6);

}  // namespace primus::preflight
