// Looks at the machine that this process runs on: collects what is there, and judges it. Every part has its
// time; what does not answer is a failure by name.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "safe/preflight/check.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

struct NodeOptions {
  // The sections that are judged and reported. Of the others those checks run that the user demands something
  // of (Requirements).
  bool host = true, gpu = true, network = true;
  HostQuestions questions = {};
  std::string rdma_ports = {};  // NCCL_IB_HCA's syntax; every device that it names must be there
  std::optional<std::chrono::milliseconds> tool_timeout = {};
  Requirements wanted = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of each part
};

// Without a section and a demand, nothing is looked at, and there is no finding.
// The machine is shared with threads that may outlive the call (NodeReport::has_stuck_threads).
NodeReport inspect_node(const std::shared_ptr<const Machine>& machine, const NodeOptions& options);

}  // namespace primus::preflight
