// The smoke test of a node, without a rendezvous: every node of a job looks at itself and writes what it
// found into a folder that the nodes share; node 0 reads the reports of all.
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

// The all-reduce between the node's GPUs.
struct SmokeReduce {
  std::int64_t mib = 64;
  double timeout_seconds = 120;
};

struct SmokeOptions {
  NodeOptions node;                  // wanted.gpus: a demand of the user's; else GPUS_PER_NODE may be one
  PerformanceOptions performance{};  // its table of speeds is read from the presets
  bool measures_speeds = false;      // products, memory and the all-reduce; else exact products alone
  SmokeReduce reduce;
  Path dump_path;
  bool keeps_earlier_reports = false;
  SmokeExpectation expected;
  std::string node_list;  // a file with the nodes' names; empty: Slurm's list of the step
  std::string program;    // this program, which runs the all-reduce as a job of its own
};

struct SmokeResult {
  bool is_whole = false;  // the report is of all nodes, and not of this one alone
  SmokePlace place;
  Report report;  // without version and date
};

// Nothing where another process of this node runs the test. `note` gets sentences for the user. Throws Error
// for a list of nodes that cannot be read, and for files that cannot be written.
std::optional<SmokeResult> run_node_smoke(const std::shared_ptr<const Machine>& machine, SmokeOptions options,
                                          const std::function<void(std::string_view sentence)>& note);

}  // namespace primus::preflight
