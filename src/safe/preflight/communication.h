// How fast the ranks of a job exchange: collectives within nodes and between them, pairs, rings, and the
// search for slow nodes. Every rank calls it, with the same plan and nodes.
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
  std::vector<std::int64_t> intra_mib, inter_mib, ring_mib;  // sizes of a rank's tensor
  std::vector<int> intra_groups;                             // ranks of a node
  std::vector<int> inter_groups;                             // nodes
  int warmup = 5, iterations = 20;
  double pause_seconds = 0;  // between groups of ranks
};

// The ranks of every node, in order. All nodes have equally many, else the tests between nodes are skipped.
using Nodes = std::vector<std::vector<int>>;

struct CommunicationResult {
  std::vector<Measurement> measurements;  // of this rank
  SearchPlan search_plan;
  // Of this rank's groups alone, 0 elsewhere: the rate of a group is the least of its ranks'.
  SearchRates search_rates;
  std::vector<std::string> skipped;  // what was not measured, and why
};

// Throws Error where ranks are lost or do not answer in time.
CommunicationResult measure_communication(comm::Communicator& world, Device& device, const Nodes& nodes,
                                          const CommunicationPlan& plan);

}  // namespace primus::preflight
