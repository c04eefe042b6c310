// The order of a job's nodes: which node holds which place, and so which ranks. Ranks stay numbered over the
// mesh; only nodes exchange places. The sums of a run are taken by rank, so the order changes no result.
//
// Node 0 of the launcher always holds place 0, because all nodes know its address.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job_outline.h"
#include "launch/network/network.h"

namespace primus::launch {

enum class RankOrder {
  kGiven,     // the launcher's order
  kSwitch,    // consecutive nodes share a switch: good for data and expert ranks
  kPipeline,  // the nodes of the stages of one pipeline share a switch
};
std::optional<RankOrder> rank_order_of(std::string_view name);  // "given", "switch", "pipeline"
std::string_view name_of(RankOrder order);

// Ranks of a job, without its spare nodes.
struct OrderedJob {
  int ranks = 1;                     // per node
  int spares = 0;                    // nodes without ranks
  std::optional<JobMesh> mesh = {};  // nullopt: not known
};

struct NodeOrder {
  std::vector<int> nodes;  // the launcher's number of the node at each place; spares hold the last ones
  std::vector<std::string> notes;  // deviations from the request, one sentence each
  // The order of the nodes: the requested one, or kSwitch if the stages do not allow kPipeline.
  RankOrder used = RankOrder::kGiven;
  // Returns the place of the node with the launcher's number `node`.
  int place_of(int node) const;
};

// Orders the nodes. A switch whose nodes complete a group of 2, 4, 8 ... nodes comes first, so that groups of
// ranks seldom cross switches. Spares are nodes of switches with few nodes of the job.
NodeOrder order_nodes(const Network& network, RankOrder order, const OrderedJob& job);

// Groups of ranks of one kind, and how many of them have nodes below several hosts or switches.
struct CrossedGroups {
  std::string kind;           // "tensor", "context", "expert", "data", "pipeline"
  int groups = 0, ranks = 0;  // size of a group
  int across_hosts = 0;
  std::vector<int> across;  // for each level of switches, from the lowest to the top
};
// Counts the groups of more than one rank of a job whose mesh is known and divides its ranks; otherwise
// returns none.
std::vector<CrossedGroups> crossed_groups(const Network& network, const NodeOrder& order,
                                          const OrderedJob& job);

// Returns lines that show the switches, the nodes below them and their ranks, and crossed_groups().
std::vector<std::string> drawn_network(const Network& network, const NodeOrder& order, const OrderedJob& job);

}  // namespace primus::launch
