// Preflight of all ranks of a job. Every rank inspects its machine and measures its device. Rank 0 gathers
// the reports. All ranks measure their communication, and rank 0 compares the results. A rank that is late or
// lost is reported as a failure by name; the other ranks' reports are kept.
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
  // Time limit for the arrival of all ranks, and for each exchange.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  ClusterOptions cluster = {};
  // Returns the name of a missing rank, for example from the scheduler's list of hosts. Null: names are "rank
  // 3" and the like.
  std::function<std::string(int rank)> name_of_rank = {};
  std::optional<CommunicationPlan> communication = {};
  std::function<double()> clock;              // this machine's clock, in seconds since 1970
  std::string device = "cpu";                 // device used for communication
  std::optional<Wanted> min_all_reduce = {};  // GB/s within a node
};

struct JobOutcome {
  std::vector<NodeReport> nodes;  // rank 0: all received reports, by rank; other ranks: the rank's own report
  std::vector<Finding> cluster;   // rank 0: findings of the comparison; other ranks: errors of the job
};

// Runs the preflight of the job on this rank, whose report is `own`. Problems of the job are reported as
// findings, not thrown.
JobOutcome run_job(const JobPreflight& job, NodeReport own);

}  // namespace primus::preflight
