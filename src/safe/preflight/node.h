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
  bool host = true, gpu = true, network = true;  // the sections that are judged and reported
  HostQuestions questions = {};
  std::string rdma_ports = {};  // NCCL_IB_HCA's syntax
  std::optional<std::chrono::milliseconds> tool_timeout = {};
  Requirements wanted = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of each part
};

// The machine is shared with threads that may outlive the call (NodeReport::has_stuck_threads).
NodeReport inspect_node(const std::shared_ptr<const Machine>& machine, const NodeOptions& options);

}  // namespace primus::preflight
