// Inspects the machine that this process runs on: collects facts and judges them. Each part has a time limit;
// a part that does not answer is reported as a failure by name.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "safe/preflight/check.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

struct NodeOptions {
  // The sections to judge and report. Other sections run only the checks that judge a demand of the user
  // (Requirements).
  bool host = true, gpu = true, network = true;
  HostQuestions questions = {};
  std::string rdma_ports = {};  // a selection in NCCL_IB_HCA's syntax; every device that it names must exist
  std::optional<std::chrono::milliseconds> tool_timeout = {};
  Requirements wanted = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // time limit of each part
};

// Inspects the machine. Without sections and demands, the report has no findings. Threads that outlive the
// call share `machine` (NodeReport::has_stuck_threads).
NodeReport inspect_node(const std::shared_ptr<const Machine>& machine, const NodeOptions& options);

}  // namespace primus::preflight
