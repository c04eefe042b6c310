// The order of nodes in mode `direct` (node_order.h): reads the network, and gives this node its place.
// Internal to launch. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/direct/direct_checks.h"
#include "launch/network/node_order.h"
#include "launch/node/node.h"
#include "launch/plan.h"

namespace primus::launch {

// The launcher sets this variable to a JSON object, if it knows the network: "order" (NodeOrder::used),
// "source" of the network, "nodes" (the launcher's number of the node at each place), and "switches" (for the
// node at each place, the numbers of the switches above it, from the top to the lowest). Runs record it, and
// supervisors choose spares by it.
inline constexpr const char* kNodeOrderVariable = "PRIMUS_NODE_ORDER";
// Source of the network if neither --topology nor the settings name one.
inline constexpr const char* kTopologyVariable = "PRIMUS_TOPOLOGY";

struct PlacedNodes {
  Network network;
  NodeOrder order;
  OrderedJob job;
  int place = 0;  // of this node
};

// Moves this node to the place that the settings request (rank_order, topology), in `place`. Returns nullopt
// if the settings request nothing, or if the network is not known; notes in `place` tell why. Throws the
// errors of find_network(), and Error(kInvalid) if no network is named outside of Slurm, or if an order is
// requested and nodes have different numbers of Slurm tasks.
std::optional<PlacedNodes> place_nodes(const DirectSettings& settings, const DirectCommand& command,
                                       const Variables& given, const Surroundings& surroundings,
                                       NodePlace& place);

// Adds the node order to the step's variables and, for a dry run, the picture of the network to the plan.
void add_network(const PlacedNodes& placed, bool dry_run, Step& step, Plan& plan);

// Adds the picture of the network to the plan of a job on other nodes, or a note that says why there is none.
void add_network_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                           const ElsewhereNodes& nodes, const Surroundings& surroundings, Plan& plan);

// Returns the file that the settings name as the network; nullopt: none.
std::optional<Path> network_file(const DirectSettings& settings);

}  // namespace primus::launch
