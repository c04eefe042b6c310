// The folder shared by the nodes of a smoke test: each node writes smoke/HOST.json. Node 0 reads these files,
// compares the nodes, and lists passing and failing nodes. Throws errors of the file system.
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
  std::vector<std::string> names;     // the nodes' names; empty: unknown
  std::optional<std::int64_t> count;  // default: the number of names or, without names, of nodes in the job
  std::int64_t wait_seconds = 60;
  double clock_skew_seconds = 30;  // a larger difference between the nodes' clocks is a warning
};

// Returns the unique names in a file, one per line. Throws Error(kInvalid) if there are none.
std::vector<std::string> names_in_file(const std::string& file);

class SmokeFolder {
 public:
  SmokeFolder(Path dump_path, SmokePlace place)
      : dump_path_(std::move(dump_path)), folder_(dump_path_ / "smoke"), place_(std::move(place)) {}

  // Removes reports of an earlier run, because that run may have had other nodes. Keeps the targets of links,
  // and files that are not reports. For each link, calls `note` with a sentence.
  void clean(const std::function<void(std::string_view sentence)>& note) const;
  // Writes this node's report. Throws Error(kInvalid) if the file exists and is not a report.
  void write(const NodeReport& own) const;
  // On node 0: waits until all nodes have written their reports or the time is over, compares the reports,
  // and writes passing_nodes.txt, failing_nodes.txt and, if names are known, expected_nodes.txt. `started`:
  // seconds since 1970; ignores much older reports, which belong to another run.
  struct Gathered {
    std::vector<NodeReport> nodes;  // sorted by node number
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
