// The messages about leadership (succession.h) as messages between supervisors (node_message.h).
//
// Free functions.
#pragma once

#include <optional>

#include "safe/supervise/agreement/succession.h"
#include "safe/supervise/nodes/node_message.h"

namespace primus::supervise {

// For kHello, the caller adds what a supervisor tells about itself.
NodeMessage to_node_message(const LeadershipMessage& message);
// Returns nullopt if the message is not about leadership, or is no valid one of a job of `nodes` nodes.
std::optional<LeadershipMessage> leadership_in(const NodeMessage& message, int nodes);

}  // namespace primus::supervise
