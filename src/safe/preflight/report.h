// The preflight report in four formats: terminal text, Markdown, a self-contained HTML page (printable to
// PDF), and JSON. Free functions without state. Texts from machines are escaped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/terminal/terminal.h"
#include "safe/preflight/finding.h"

namespace primus::preflight {

struct Report {
  std::string title;      // "Preflight of 2 nodes"
  std::string generated;  // date for readers
  std::string version;    // version of primus
  std::vector<std::string> notes;
  std::vector<NodeReport> nodes;
  std::vector<Finding> cluster;  // findings of the comparison of nodes
  double seconds = 0;

  // Returns the worst verdict of all nodes and of the comparison; kFail without nodes.
  Verdict verdict() const;
  bool has_stuck_threads() const;
};

struct Tally {
  int passed = 0, skipped = 0, warned = 0, failed = 0;
};
Tally tally_of(const Report& report);

// Returns warnings and failures with their fixes, measurements, and one line per category; if `all`, every
// check.
std::string to_text(const Report& report, const Terminal& terminal, bool all);
std::string to_markdown(const Report& report);
// `plots`: also draws charts of measurements over sizes and machines.
std::string to_html(const Report& report, bool plots);
nlohmann::ordered_json to_json(const Report& report);

}  // namespace primus::preflight
