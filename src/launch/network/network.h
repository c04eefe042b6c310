// The network between the nodes of a job: for each node, the switches (or blocks) above it. Sources:
//
//   Slurm        `scontrol show topology`, for the plug-ins topology/tree and topology/block
//   a file       lines "NODES SWITCH...": a node, or a Slurm list of nodes, and the names of the switches
//                above it, from the top of the network to the lowest one. '#' begins a comment
//   "slices=N"   each N consecutive nodes share a switch, as Kueue guarantees with --slice-size
//
// Thread-safe.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "launch/plan.h"

namespace primus::launch {

// The names of the switches above a node, from the top of the network to the lowest one. Empty: unknown.
using SwitchPath = std::vector<std::string>;

struct Network {
  std::string source;                // "scontrol show topology", "network.txt", "slices of 4 nodes"
  std::vector<std::string> nodes;    // names, in the launcher's order
  std::vector<SwitchPath> switches;  // of each node
  std::vector<std::string> notes;    // what is missing, one sentence each

  // Returns whether the place of any node is known.
  bool is_known() const;
};

// Reads the output of `scontrol show topology` for these nodes. Never throws because of the text: records
// that cannot be read are skipped, with a note, and a node that no record names has an empty path.
Network parse_slurm_topology(std::string_view text, std::vector<std::string> nodes);

// Reads a file of nodes and switches. `nodes`: the job's nodes; if empty, `count` nodes of the job are the
// lines' nodes in their order. Throws Error(kInvalid) with file:line for a line that cannot be read, for a
// node that occurs twice, and for another number of nodes.
Network read_network_file(const Path& file, std::vector<std::string> nodes, int count);

// How a node asks Slurm.
struct SlurmQuery {
  // Whether nodes get other places by the answer. A node must then not decide alone that there is no network.
  bool orders = false;
  int node = 0;  // number of this node, which spreads the repeated queries of nodes over time
};

// Returns the time to wait before query `number` to Slurm; the first query has the number 0.
std::chrono::milliseconds wait_before_query(int number, int node);

// Returns the network of `source`: "slurm", "slices=N", or a file. `nodes`: names of the job's nodes, if
// known; `count`: their number. Throws Error(kInvalid) for a source that the job cannot have, and
// Error(kDependency) if scontrol fails, or with SlurmQuery::orders if it is not installed. Otherwise, if
// scontrol is not installed or knows no switches, the network is not known, and a note tells why.
Network find_network(const std::string& source, const std::vector<std::string>& nodes, int count,
                     const Surroundings& surroundings, const SlurmQuery& query = {});

// Throws Error(kInvalid) if `source` is none of the above. Does not read a file.
void check_network_source(const std::string& source);

}  // namespace primus::launch
