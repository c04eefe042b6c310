#include "safe/supervise/nodes/node_supervisor.h"

#include <fmt/format.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/ranks/signals.h"
#include "safe/supervise/nodes/node_roles.h"

namespace primus::supervise {

std::string shape_of(const SupervisedJob& job, const SupervisedNodes& nodes) {
  return fmt::format("{} machines of {}, {} ranks each, run '{}'", nodes.places, nodes.nodes, job.ranks,
                     job.run.string());
}

int supervise_nodes(const SupervisedJob& job, const SupervisedNodes& nodes) {
  if (nodes.token.empty() && !comm::is_loopback(nodes.address)) {
    throw invalid(
        "a supervised job on several machines needs a secret that they share, but PRIMUS_JOB_TOKEN is not "
        "set",
        "export PRIMUS_JOB_TOKEN with the same random text on all machines, or PRIMUS_JOB_TOKEN_FILE");
  }
  // The supervisor continues if the program that reads its lines has ended ('primus ... | head').
  std::signal(SIGPIPE, SIG_IGN);
  launch::Signals signals;
  NodeJob part(job, nodes, signals.before());
  try {
    NodeHub hub(job, nodes);
    std::vector<std::string> unwritten;
    const NodeParts parts{job, nodes, signals, part, hub, unwritten};
    for (;;) {
      if (const auto code = follow(parts)) return *code;
      if (const auto code = lead(parts)) return *code;
    }
  } catch (const StoppedWaiting& stopped) {
    return 128 + stopped.signal;
  }
}

}  // namespace primus::supervise
