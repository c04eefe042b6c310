// The two roles of a supervisor of a job on several machines. supervise_nodes() changes between them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/ranks/signals.h"
#include "safe/supervise/nodes/node_hub.h"
#include "safe/supervise/nodes/node_job.h"
#include "safe/supervise/nodes/node_supervisor.h"

namespace primus::supervise {

// The objects that both roles of one supervisor use.
struct NodeParts {
  const SupervisedJob& job;
  const SupervisedNodes& nodes;
  launch::Signals& signals;
  NodeJob& part;
  NodeHub& hub;
  // Lines of the record of a leader that has lost its quorum. They are written if no other node leads.
  std::vector<std::string>& unwritten;
};
// Writes these lines, unless another leader has written the job's file.
void write_last_lines(const NodeParts& parts);

// A request to stop, while this node waits for a leader.
struct StoppedWaiting {
  int signal;
};
// Throws StoppedWaiting if this process was asked to stop.
void throw_if_stopped(launch::Signals& signals);

// Follows a leader, and seeks one. Returns the exit code at the end of the job, or nullopt if this node leads
// now.
std::optional<int> follow(const NodeParts& parts);
// Leads the job. Returns its exit code, or nullopt if this node leads no more; its ranks have ended then.
std::optional<int> lead(const NodeParts& parts);

}  // namespace primus::supervise
