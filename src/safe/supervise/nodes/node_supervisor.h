// Supervises a training job on several machines (nodes): each node has one supervisor, which starts and ends
// the node's ranks. One of them leads: it decides by the same RecoveryPolicy as on one machine, and records.
// Node 0 leads first, at the job's address and port. If the leader is lost, the other supervisors end their
// ranks within seconds. The lowest node that a quorum can reach becomes the leader, and continues from the
// decisions that the nodes agreed on (succession.h, agreement.h). Without a quorum they end after
// kLeaderWait, so that a scheduler can start the job again. docs/supervise.md describes what users see, and
// the protocol.
//
// node_roster.h: which nodes take part, and when an attempt starts and is over. node_hub.h: the connections
// and the leadership. node_job.h: the processes of a node.
#pragma once

#include <cstdint>
#include <string>

#include "safe/supervise/supervisor.h"

namespace primus::supervise {

struct SupervisedNodes {
  int nodes = 2;             // all machines, with spares
  int places = 2;            // machines that the job needs
  int node = 0;              // number of this machine
  std::string address = {};  // node 0's address
  std::uint16_t port = 0;    // node 0's port for supervisors; ranks use another free port in each attempt
  std::string token = {};    // the job's secret; may be empty if `address` is a loopback address
  double first_wait = 600;   // seconds in which all nodes must join
  std::vector<std::vector<int>> switches = {};  // above each node, from the top to the lowest; empty: unknown
};

// A node counts as lost after this time without a message. A node that receives no message from its leader
// ends its ranks before the leader gives its place to a spare, so that two nodes never hold one place.
inline constexpr double kNodeSilence = 10, kLeaderSilence = 8;
inline constexpr double kLeaderWait = 30;  // seconds in which a node whose leader is lost seeks another one

// Both main loops look around so often, in milliseconds, and both sides send a message so often, in seconds.
// A node that waits for an attempt looks for the newest checkpoint more often, so that the attempt starts
// soon.
inline constexpr int kNodeTickMs = 100;
inline constexpr double kNodeBeat = 1, kIdleNodeBeat = 0.25;

// Runs this machine's part of the job to the job's end. Returns the exit code of the job, the same on all
// machines, or 3 if the leader was lost. `job.ranks`: ranks per node. Signals and threads: see supervise().
int supervise_nodes(const SupervisedJob& job, const SupervisedNodes& nodes);

// Describes the job that a node of it must have been started for; equal on all nodes.
std::string shape_of(const SupervisedJob& job, const SupervisedNodes& nodes);

}  // namespace primus::supervise
