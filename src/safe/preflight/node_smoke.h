// The node smoke test, which needs no rendezvous. Every node of a job inspects itself and writes its report
// into a folder shared by the nodes. Node 0 reads all reports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "safe/preflight/node.h"
#include "safe/preflight/performance.h"
#include "safe/preflight/smoke_folder.h"

namespace primus::preflight {

// Settings of the all-reduce between the node's GPUs.
struct SmokeReduce {
  std::int64_t mib = 64;
  double timeout_seconds = 120;
};

struct SmokeOptions {
  NodeOptions node;                  // wanted.gpus: the user's value, else GPUS_PER_NODE; may be unset
  PerformanceOptions performance{};  // the table of speeds comes from the presets
  bool measures_speeds = false;      // GEMMs, memory and all-reduce; false: only the corruption scan
  SmokeReduce reduce;
  Path dump_path;
  bool keeps_earlier_reports = false;
  SmokeExpectation expected;
  std::string node_list;  // file with the nodes' names; empty: the node list of the Slurm step
  std::string program;    // path of this program, which runs the all-reduce as a separate job
};

struct SmokeResult {
  bool is_whole = false;  // the report covers all nodes, not only this node
  SmokePlace place;
  Report report;  // the report without version and date
};

// Returns nullopt if another process of this node runs the test. Calls `note` with sentences for the user.
// Throws Error if the list of nodes cannot be read or files cannot be written.
std::optional<SmokeResult> run_node_smoke(const std::shared_ptr<const Machine>& machine, SmokeOptions options,
                                          const std::function<void(std::string_view sentence)>& note);

}  // namespace primus::preflight
