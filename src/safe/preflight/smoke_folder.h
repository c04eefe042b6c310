// The folder that the nodes of a smoke test share: each node writes smoke/HOST.json, and node 0 reads them,
// compares the nodes, and lists those that passed and those that failed. Errors are those of the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "safe/preflight/report.h"
#include "safe/preflight/smoke_place.h"

namespace primus::preflight {

// The nodes that must report, and how long node 0 waits for them.
struct SmokeExpectation {
  std::vector<std::string> names;     // of the nodes; empty: not known
  std::optional<std::int64_t> count;  // else as many as there are names or, without names, nodes in the job
  std::int64_t wait_seconds = 60;
  double clock_skew_seconds = 30;  // a larger difference between the nodes' clocks is a warning
};

// The names in a file, one a line, each once. Throws Error(kInvalid) where there are none.
std::vector<std::string> names_in_file(const std::string& file);

class SmokeFolder {
 public:
  SmokeFolder(Path dump_path, SmokePlace place)
      : dump_path_(std::move(dump_path)), folder_(dump_path_ / "smoke"), place_(std::move(place)) {}

  // Removes the reports of an earlier run, whose nodes may not be in this one. Files that are no reports
  // stay, and so does what a link leads to; `note` gets a sentence about the link.
  void clean(const std::function<void(std::string_view sentence)>& note) const;
  // Writes this node's report. Throws Error(kInvalid) where a file of that name is no report.
  void write(const NodeReport& own) const;
  // On node 0: waits until all nodes have written or the time is over, compares them, and writes
  // passing_nodes.txt, failing_nodes.txt and, where names are known, expected_nodes.txt. `started`: seconds
  // since 1970; reports that are much older are of another run.
  struct Gathered {
    std::vector<NodeReport> nodes;  // by their numbers
    std::vector<Finding> cluster;
  };
  Gathered gather(const NodeReport& own, const SmokeExpectation& expected, double started) const;

 private:
  struct Written {
    NodeReport report;
    std::string run;
  };
  std::optional<Written> read(const std::string& name) const;
  std::vector<NodeReport> reported(const NodeReport& own, double started) const;
  void write_lists(const std::vector<NodeReport>& nodes, const std::vector<std::string>& names,
                   const std::vector<std::string>& missing) const;

  Path dump_path_, folder_;
  SmokePlace place_;
};

}  // namespace primus::preflight
