// Measures communication between the ranks of a job: collectives within and between nodes, pairs, rings, and
// the search for slow nodes. Every rank must call measure_communication() with the same plan and nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "safe/preflight/check.h"
#include "safe/preflight/slow_search.h"

namespace primus::preflight {

struct CommunicationPlan {
  bool intra_all_reduce = true, intra_all_to_all = true, inter_all_reduce = true, inter_all_to_all = true;
  bool inter_pairs = true, inter_ring = true, slow_search = true;
  std::vector<std::int64_t> intra_mib, inter_mib, ring_mib;  // MiB of a rank's tensor
  std::vector<int> intra_groups;                             // group sizes in ranks of a node
  std::vector<int> inter_groups;                             // group sizes in nodes
  int warmup = 5, iterations = 20;
  double pause_seconds = 0;  // pause between the tests of two groups of ranks
};

// The ranks of every node, in order. If nodes have different numbers of ranks, tests between nodes are
// skipped.
using Nodes = std::vector<std::vector<int>>;

struct CommunicationResult {
  std::vector<Measurement> measurements;  // measurements of this rank
  SearchPlan search_plan;
  // The rates that this rank measured; 0 for groups to which it does not belong. The rate of a group is the
  // minimum over its ranks.
  SearchRates search_rates;
  std::vector<std::string> skipped;  // tests that were skipped, and why
};

// Throws Error if ranks are lost or do not answer in time.
CommunicationResult measure_communication(comm::Communicator& world, Device& device, const Nodes& nodes,
                                          const CommunicationPlan& plan);

}  // namespace primus::preflight
