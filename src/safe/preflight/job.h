// Preflight of all ranks of a job: every rank looks at its machine and measures its device, rank 0 gathers
// what they found, all measure how fast they exchange, and rank 0 compares. A rank that does not come in
// time, or is lost on the way, is a failure with its name, and costs nothing of what the others found.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/environment.h"
#include "safe/preflight/cluster.h"
#include "safe/preflight/communication.h"

namespace primus::preflight {

struct JobPreflight {
  comm::JobEnvironment environment;
  std::chrono::milliseconds timeout =
      std::chrono::seconds(120);  // for all ranks to come, and for each exchange
  ClusterOptions cluster = {};
  // What ranks are called that never come, by rank: hosts of a scheduler's list, say. Empty: "rank 3".
  std::function<std::string(int rank)> name_of_rank = {};
  std::optional<CommunicationPlan> communication = {};
  std::function<double()> clock;                // seconds since 1970, of this machine
  std::string device = "cpu";                   // that takes part in the exchanges
  std::optional<Wanted> least_all_reduce = {};  // GB/s within a node
};

struct JobOutcome {
  std::vector<NodeReport> nodes;  // of rank 0: all that came, by rank; of others: their own
  std::vector<Finding> cluster;   // of rank 0; of others what went wrong with the job
};

// `own` is what this rank found. Does not throw for what happens to the job: that is a finding.
JobOutcome run_job(const JobPreflight& job, NodeReport own);

}  // namespace primus::preflight
